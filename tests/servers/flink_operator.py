"""What Apache's operator for Flink takes: the schema of its FlinkDeployment, from Maven Central. No operator runs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.servers.installed import installed, run

VERSION = "1.10.0"
_ARTIFACT = f"flink-kubernetes-operator-api-{VERSION}.jar"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_DEFINITION = "META-INF/fabric8/flinkdeployments.flink.apache.org-v1.yml"


def _install(folder: Path) -> None:
    artifact = f"-Dartifact=org.apache.flink:flink-kubernetes-operator-api:{VERSION}"
    run("mvn", "-q", "-B", _COPY, artifact, f"-DoutputDirectory={folder}")


def api() -> Path:
    """The jar of its objects, fetched the first time."""
    return installed("flink-operator", VERSION, _install) / _ARTIFACT


def deployment_schema(version: str) -> dict[str, Any]:
    """The OpenAPI schema of a FlinkDeployment of that version, such as v1beta1, where unknown fields are refused.

    So does the API server when kubectl asks it to; the definition alone would have it drop them.
    """
    with zipfile.ZipFile(api()) as jar:
        definition = yaml.load(jar.read(_DEFINITION), yaml.CSafeLoader)
    (found,) = (each for each in definition["spec"]["versions"] if each["name"] == version)
    schema: dict[str, Any] = found["schema"]["openAPIV3Schema"]
    schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}}
    return strict(schema)


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, in which each object takes the properties alone that it names."""
    properties = schema.get("properties", {})
    made = schema | {"properties": {name: strict(each) for name, each in properties.items()}} if properties else schema
    if isinstance(items := schema.get("items"), dict):
        made = made | {"items": strict(items)}
    if properties and not schema.keys() & {"additionalProperties", "x-kubernetes-preserve-unknown-fields"}:
        made = made | {"additionalProperties": False}
    return made

"""The objects of deploy/kubernetes, as its files have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
_FILES = sorted(FOLDER.glob("*.yaml"))


def objects() -> dict[str, dict[str, Any]]:
    """The objects of all files, by their kinds."""
    return {each["kind"]: each for file in _FILES for each in yaml.safe_load_all(file.read_text())}


def pod(kind: str) -> dict[str, Any]:
    """The pod that runs millrace."""
    spec = objects()[kind]["spec"]
    found: dict[str, Any] = (spec["taskManager"]["podTemplate"] if kind == "FlinkDeployment" else spec["template"])[
        "spec"
    ]
    return found


def container(kind: str) -> dict[str, Any]:
    *_, found = pod(kind)["containers"]
    assert isinstance(found, dict)
    return found


def variables(kind: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(kind)["env"]}

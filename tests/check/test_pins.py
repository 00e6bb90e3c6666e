"""The hashes of the pinned packages, and the bill of materials of what is installed."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = (ROOT / "requirements.txt").read_text().splitlines()
_HASHED = re.compile(r"^(\S.*?) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\\n|\n))+)", re.MULTILINE)


def _stated(lines: list[str]) -> list[str]:
    return sorted(str(Requirement(line)) for line in lines)


def test_each_pin_has_its_hashes() -> None:
    text = (ROOT / "deploy" / "requirements.hashes.txt").read_text()
    assert _HASHED.sub("", text) == "", "each line is a pin or one of its hashes"
    assert _stated([match[1] for match in _HASHED.finditer(text)]) == _stated(PINS), "make pins mends this"


def test_what_builds_the_package_is_pinned_and_the_page_builds_with_it() -> None:
    page = (ROOT / "docs" / "explanation" / "security.md").read_text()
    assert "uv pip install --no-deps --no-build-isolation ." in page, "else uv fetches what builds it, without hashes"
    pins = {canonicalize_name(each.name): each.specifier for each in map(Requirement, PINS)}
    for needed in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]):
        assert needed.specifier.contains(str(pins[canonicalize_name(needed.name)]).removeprefix("=="))


@pytest.mark.slow
def test_the_bill_of_materials_names_what_is_installed_with_licenses() -> None:
    subprocess.run(["make", "sbom"], cwd=ROOT, check=True)
    bill = json.loads((ROOT / "out" / "sbom.cdx.json").read_text())
    versions = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    pinned = [Requirement(line) for line in PINS]
    wanted = {
        canonicalize_name(each.name): str(each.specifier)[2:]
        for each in pinned
        if each.marker is None or each.marker.evaluate()
    }
    assert {name: versions.get(name) for name in wanted} == wanted
    licensed = {each["name"] for each in bill["components"] if each.get("licenses")}
    assert {"apache-beam", "torch", "pyarrow"} <= licensed

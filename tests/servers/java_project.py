"""The project in deploy/java, built once by Maven as it stands."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.servers.installed import installed, run

_PROJECT = Path(__file__).parents[2] / "deploy" / "java"


def class_path() -> str:
    """The class path of the project and its dependencies."""
    sources = [_PROJECT / "pom.xml", *sorted((_PROJECT / "src").rglob("*.java"))]
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = installed("millrace-java", version, _build) / "target"
    return f"{target}/*:{target}/dependency/*"


def _build(folder: Path) -> None:
    shutil.copytree(_PROJECT / "src", folder / "src")
    shutil.copy(_PROJECT / "pom.xml", folder)
    run("mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DincludeScope=runtime", cwd=folder)

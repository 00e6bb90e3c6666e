"""Beam SQL: an expansion service in Java that has it, and the worker of what it expands to. Installed by Maven."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.servers.installed import installed, run
from tests.servers.processes import free_port, listens, serving

VERSION = "2.70.0"
"""The latest version whose parts Maven Central's mirrors all have, as sql_pom.xml says."""
_POM = Path(__file__).with_name("sql_pom.xml")
_SERVICE = "org.apache.beam.sdk.expansion.service.ExpansionService"
_JAVA = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _install(folder: Path) -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    run("mvn", "-q", "-B", "-f", str(_POM), *goal)


def jars() -> Path:
    """The folder of its jars, fetched the first time."""
    return installed("beam-sql", VERSION, _install)


@contextlib.contextmanager
def sql_service(folder: Path) -> Iterator[str]:
    """The address of an expansion service that takes any class, such as SqlTransform; its log is in `folder`."""
    port = free_port()
    flags = ["--javaClassLookupAllowlistFile=*", "--alsoStartLoopbackWorker"]
    command = [*_JAVA, "-cp", f"{jars()}/*", _SERVICE, str(port), *flags]
    with serving(command, lambda: listens(port), log=folder / "sql.log", deadline=600):
        yield f"localhost:{port}"

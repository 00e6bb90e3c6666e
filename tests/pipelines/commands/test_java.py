"""A pipeline in Java that has its rows answered by Generate: Prism runs it, Java's steps in the pipeline's own process,
Python's in the expansion service's.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.java_project import class_path
from tests.servers.prism import prism_server
from tests.servers.processes import free_port, listens, serving

pytestmark = pytest.mark.runners

JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@pytest.fixture
def expansion(tmp_path: Path, runtime: Path) -> Iterator[str]:
    """The service's address."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "from millrace.pipelines.cli import main; main()",
        "expansion",
        "--port",
        str(port),
    ]
    environment = {"MILLRACE_RUNTIME_DIR": str(runtime)}
    with serving(command, lambda: listens(port), log=tmp_path / "expansion.log", environment=environment):
        yield f"localhost:{port}"


@pytest.fixture
def prism(tmp_path: Path) -> Iterator[str]:
    with prism_server(tmp_path) as endpoint:
        yield endpoint


def test_a_pipeline_in_java_has_its_questions_answered(tmp_path: Path, expansion: str, prism: str) -> None:
    (tmp_path / "questions.txt").write_text("What is the capital of Mexico?\nWhat is the capital of Peru?\n")
    command = [*JAVA, "-cp", class_path(), "org.millrace.beam.Example", "--runner=PortableRunner"]
    command += [f"--jobEndpoint={prism}", "--defaultEnvironmentType=LOOPBACK", f"--expansionService={expansion}"]
    command += [f"--input={tmp_path}/questions.txt", f"--output={tmp_path}/answers"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=dict(os.environ))
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = [line for path in tmp_path.glob("answers*") for line in path.read_text().splitlines()]
    assert sorted(lines) == [
        "What is the capital of Mexico?\tMexico City",
        "What is the capital of Peru?\tLima",
    ]

"""What a wheel requires by extra, and what works where the extra `engine` is not installed."""

import os
import re
import subprocess
import zipfile
from collections import defaultdict
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from millrace.model_manager.wire.backends import BACKENDS
from tests.pipelines.clean_environments import built_wheel, clean_environment, copied, install

ROOT = Path(__file__).parents[2]
ENGINE_PACKAGES = BACKENDS["torch"].modules
LACKS = rf"the engine needs {', '.join(ENGINE_PACKAGES)}, which \S+ lacks: pip install 'beam-millrace\[engine\]'"
IMPORTS_ALL = """
import importlib, pkgutil
import millrace
assert not [name for name in millrace.__all__ if not hasattr(millrace, name)]
names = [each.name for each in pkgutil.walk_packages(millrace.__path__, "millrace.", onerror=print)]
names = [name for name in names if not name.endswith("__main__") and ".engine." not in name]
print(len([importlib.import_module(name) for name in names]))
"""
GENERATES = """
import traceback
import apache_beam as beam
import millrace
for backend in "torch", "fake":
    try:
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            answers = pipeline | beam.Create(["a"]) | millrace.Generate(millrace.ModelConfig(backend=backend))
            answers | beam.Map(lambda answer: print(answer.finish_reason.value))
    except Exception:
        traceback.print_exc()
"""
OPENS_AN_ENGINE = """
from millrace import ModelConfig
from millrace.model_manager.client import EngineClient
EngineClient.open(ModelConfig())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and not what its engine runs on."""
    python = clean_environment(tmp_path_factory.mktemp("client") / "venv", without=ENGINE_PACKAGES)
    install(python, wheel)
    return python


def ran(tmp_path: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MILLRACE_RUNTIME_DIR": f"{tmp_path}/rt"}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_a_wheel_has_the_files_of_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist() if name.startswith("millrace/serving/window/static/")}
    assert names == {file.name for file in (ROOT / "serving/window/static").iterdir()}


def test_a_wheel_requires_torch_for_its_engine_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
        assert "millrace/py.typed" in archive.namelist()
    required = defaultdict(set)
    for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
        extra = re.fullmatch('extra == "(.*)"', str(requirement.marker))
        required[extra[1] if extra else ""].add(requirement.name)
    assert set(required) == {"", *metadata.get_all("Provides-Extra", [])}
    assert required["engine"] == set(ENGINE_PACKAGES)
    assert not required[""] & {*ENGINE_PACKAGES, "beam-millrace"}
    assert {"apache-beam", "llguidance", "tokenizers"} <= required[""]
    assert required["s3"] == {"boto3"}
    assert "ipykernel" in required["notebook"]
    assert required["engine"] <= required["dev"]


def test_all_but_the_engine_is_imported_without_torch(client: Path, tmp_path: Path) -> None:
    ended = ran(tmp_path, client, "-I", "-c", IMPORTS_ALL)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["ps"],
        ["plan", "--input", "p.txt", "--tokens_per_second", "500"],
        [
            *("run", "--input", "gs://b/a.jsonl", "--output", "gs://b/c", "--runner", "DataflowRunner", "--dry_run"),
            *("--project", "p", "--region", "us-central1", "--temp_location", "gs://b/t"),
        ],
    ],
    ids=lambda command: command[0],
)
def test_a_client_needs_no_torch(client: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "p.txt").write_text("What is the capital of Mexico?\n")
    ended = ran(tmp_path, client.with_name("millrace"), *command)
    assert ended.returncode == 0, ended.stderr


def test_a_job_whose_engine_would_run_here_ends_with_what_to_install(client: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("What is the capital of Mexico?\n")
    ended = ran(tmp_path, client.with_name("millrace"), "run", "--input", "p.txt", "--output", "out/c")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(f"millrace: {LACKS}\n", ended.stderr)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "rt").exists()


def test_so_does_a_program_unless_its_model_is_a_fake(client: Path, tmp_path: Path) -> None:
    ended = ran(tmp_path, client, "-c", GENERATES)
    assert re.search(rf"\.ModelLoadFailed: {LACKS}$", ended.stderr, re.MULTILINE)
    assert (ended.returncode, ended.stdout) == (0, "length\n"), ended.stderr


def test_an_engine_that_starts_without_torch_says_what_to_install(client: Path, tmp_path: Path) -> None:
    ended = ran(tmp_path, client, "-c", OPENS_AN_ENGINE)
    assert re.search(rf"\.ModelLoadFailed: {LACKS}$", ended.stderr, re.MULTILINE)
    ran(tmp_path, client.with_name("millrace"), "stop")


def test_an_editable_install_is_found_beside_a_folder_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "millrace").mkdir()
    python = clean_environment(tmp_path / "venv")
    install(python, "--editable", copied(tmp_path))
    ended = ran(tmp_path, python, "-c", "import millrace; print(millrace.ModelConfig.__module__)")
    assert ended.stdout == "millrace.model_manager.wire.config\n", ended.stderr

"""A wheel: its requirements by extra, what works without the extra `engine`, and the Pythons that it runs on."""

import os
import re
import shutil
import subprocess
import sys
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
OTHER_PYTHONS = [
    version
    for version in re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "setup.py").read_text())
    if version != f"{sys.version_info.major}.{sys.version_info.minor}"
]
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
    """The command's end: of the code that is installed, not of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["MILLRACE_RUNTIME_DIR"] = f"{tmp_path}/rt"
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


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_a_wheel_and_an_editable_install_work_on_each_other_python(wheel: Path, tmp_path: Path, version: str) -> None:
    uv, python = uv_command(), tmp_path / "venv/bin/python"
    if not (interpreter := found_python(uv, version)):
        pytest.skip(f"Python {version} is neither on PATH, nor among the Pythons of pyenv and uv")
    pip_install = (uv, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "requirements.txt")
    expect(tmp_path, uv, "venv", "--quiet", "--python", interpreter, tmp_path / "venv")
    expect(tmp_path, *pip_install, f"beam-millrace[serve,traces] @ {wheel.as_uri()}")
    assert int(expect(tmp_path, python, "-I", "-c", IMPORTS_ALL)) > 100

    (tmp_path / "p.txt").write_text("What is the capital of Mexico?\nAnd of Peru?\n")
    job = ("run", "--input", "p.txt", "--output", "out/c", "--backend", "fake", "--linger", "0")
    expect(tmp_path, python.with_name("millrace"), *job)
    (completions,) = (tmp_path / "out").glob("c-*.jsonl")
    assert len(completions.read_text().splitlines()) == 2

    expect(tmp_path, *pip_install, "--no-deps", "--editable", copied(tmp_path))
    place = expect(tmp_path, python, "-I", "-c", "import millrace; print(millrace.__file__, millrace.ModelConfig)")
    assert place.startswith(str(tmp_path / "copy"))


def uv_command() -> Path:
    """uv, which makes the environment of the tests (Makefile), or another one on PATH."""
    beside = Path(sys.executable).with_name("uv")
    return beside if beside.is_file() else Path(shutil.which("uv") or "uv")


def found_python(uv: Path, version: str) -> Path | None:
    """A Python of this version: one on PATH, of pyenv, or of uv. pyenv's links on PATH may lead to no Python."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    find = (uv, "python", "find", "--managed-python", "--no-python-downloads", version)
    managed = subprocess.run(find, capture_output=True, text=True, check=False).stdout.strip()
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python")), managed]
    return next((Path(each) for each in found if each and answers(each)), None)


def answers(python: str | Path) -> bool:
    return not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode


def expect(tmp_path: Path, *command: str | Path) -> str:
    """What a command that must succeed prints."""
    ended = ran(tmp_path, *command)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout

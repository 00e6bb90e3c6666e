"""The parts of an image exist: files, extras, commands, the pinned Beam. No test builds an image."""

import json
import re
from importlib.metadata import entry_points, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS, DATAFLOW = ROOT / "deploy/Dockerfile", ROOT / "deploy/dataflow/Dockerfile"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Name and arguments of each instruction, its lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def values(dockerfile: Path, name: str) -> list[str]:
    return [arguments for each, arguments in instructions(dockerfile) if each == name]


@pytest.mark.parametrize("dockerfile", [RUNS, DATAFLOW], ids=["runs", "dataflow"])
def test_an_image_is_made_of_files_that_are_here_and_of_extras_that_there_are(dockerfile: Path) -> None:
    copied = {file for each in values(dockerfile, "COPY") if "--from" not in each for file in each.split()[:-1]}
    assert [file for file in copied if not (ROOT / file).exists()] == []
    assert {"setup.py", "millrace", "pipelines", "transforms", "serving", "model_manager"} <= copied
    ignored = dockerfile.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    (installed,) = (each for each in values(dockerfile, "RUN") if "pip check" in each)
    extras = re.findall(r"'\.\[(\w+)\]'", installed)
    assert extras == ["engine"]
    assert set(extras) <= set(metadata("beam-millrace").get_all("Provides-Extra", []))
    assert "PYTHON_VERSION=3.11" in values(dockerfile, "ARG")


def test_an_image_of_dataflow_has_another_engine_where_workers_look_for_it() -> None:
    assert {"ENGINE=", "ENGINE_DEVICE="} <= set(values(DATAFLOW, "ARG"))
    (made,) = (each for each in values(DATAFLOW, "RUN") if "millrace engines install" in each)
    assert '"${ENGINE}" --device "${ENGINE_DEVICE:?takes cuda or cpu}"' in made
    names = [name for name, _ in instructions(DATAFLOW)]
    settings = [arguments for _, arguments in instructions(DATAFLOW)]
    cache = settings.index("MILLRACE_CACHE_DIR=/opt/models/millrace")
    assert names[cache] == "ENV"
    assert cache < settings.index(made), "the environment is made below the folder that workers use"


def test_the_image_that_runs_is_the_command_of_a_user_whose_models_are_in_a_volume() -> None:
    assert json.loads(values(RUNS, "ENTRYPOINT")[-1]) == ["millrace"]
    assert entry_points(group="console_scripts", name="millrace")
    (user,) = values(RUNS, "USER")
    assert any(f"useradd --create-home --uid 1000 {user}" in each for each in values(RUNS, "RUN"))
    (volume,) = values(RUNS, "VOLUME")
    settings = dict(each.split("=", 1) for each in values(RUNS, "ENV"))
    assert set(settings) == {"HF_HOME", "MILLRACE_CACHE_DIR", "XDG_CACHE_HOME"}
    assert all(folder.startswith(f"{volume}/") for folder in settings.values())


def test_the_image_of_dataflow_has_the_beam_that_is_pinned() -> None:
    pinned = re.search(r"^apache-beam==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"BEAM_VERSION={pinned[1]}" in values(DATAFLOW, "ARG")

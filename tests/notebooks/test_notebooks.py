"""Each notebook runs from top to bottom, shows what it was stored with, and leaves nothing running."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.model_manager.backends.environments import made
from tests.model_manager.backends.gguf_files import write_gguf
from tests.runtime_folders import model_loaded, processes_of
from tests.servers.prism import prism
from tests.waiting import eventually

from .executed import NOTEBOOKS, differences, execute, outputs

pytestmark = pytest.mark.filterwarnings("default")  # the kernel's own libraries warn in this process


@pytest.mark.slow
def test_the_quickstart(tmp_path: Path) -> None:
    assert "Tokyo" in _text(_run_with_model("01_quickstart.ipynb", tmp_path))


@pytest.mark.slow
def test_typed_answers_become_a_table_and_a_plot(tmp_path: Path) -> None:
    notebook = _run_with_model("02_typed_answers.ipynb", tmp_path)
    told = re.search(r"(\d+) of (\d+) fields are right", _text(notebook))
    assert told is not None
    right, fields = map(int, told.groups())
    assert fields == 200
    assert right >= 190
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.slow
def test_a_server_is_asked_while_a_job_runs_and_both_are_plotted(tmp_path: Path) -> None:
    notebook = _run("05_serving_and_watching.ipynb", tmp_path)
    lines = _text(notebook).splitlines()
    assert {"Lima 4", "Lima", "exit status 0", "400 rows"} <= {*lines}
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.runners
def test_the_notebook_of_streams_runs_on_prism(tmp_path: Path) -> None:
    text = _text(_run("03_streams_and_runners.ipynb", tmp_path, PRISM=str(prism())))
    written = [line.split()[1:3] for line in text.splitlines() if line.startswith("answers")]
    assert sorted(written) == [["Ghana", "Accra"], ["Japan", "Tokyo"], ["Peru", "Lima"]]
    assert "workers" in text, "of the plan"


@pytest.mark.engines
def test_the_notebook_of_engines_has_the_same_answers_of_each(tmp_path: Path) -> None:
    for name in ("openvino", "ctranslate2", "llama_cpp"):
        made(name)
    notebook = _run("04_engines.ipynb", tmp_path, GGUF=str(write_gguf(tmp_path / "millrace-tiny.gguf")))
    lines = _text(notebook).splitlines()
    assert lines.count("  review-1: positive") == 4
    assert lines.count("  capital-3: Rome") == 4
    assert lines.count("  5120 tokens") == 4
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_every_code_cell_that_shows_something_is_stored_with_it_and_with_no_path_of_a_machine() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = path.read_text()
        assert outputs(nbformat.reads(text, as_version=4)), path.name
        assert not re.search(r"/(home|root|work|Users|var/folders|tmp[a-z0-9_]{8})/", text), path.name


def _run_with_model(name: str, tmp_path: Path) -> nbformat.NotebookNode:
    """Run it with the model in memory: on a busy machine each pipeline of the notebook would load it anew."""
    with model_loaded(tmp_path / "run"):
        notebook = execute(name, tmp_path / "notebooks", tmp_path / "run")
    return _as_stored(name, notebook, tmp_path / "run")


def _run(name: str, tmp_path: Path, **environment: str) -> nbformat.NotebookNode:
    """The notebook with its outputs, which are the stored ones."""
    notebook = execute(name, tmp_path / "notebooks", tmp_path / "run", **environment)
    return _as_stored(name, notebook, tmp_path / "run")


def _as_stored(name: str, notebook: nbformat.NotebookNode, runtime: Path) -> nbformat.NotebookNode:
    """The notebook, if it shows what it was stored with and has left nothing."""
    eventually(lambda: not runtime.exists() and not [*processes_of(runtime)])
    stored = nbformat.read(NOTEBOOKS / name, as_version=4)
    assert not differences(notebook, stored), "`make notebooks` stores new outputs"
    return notebook


def _text(notebook: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))

"""Each notebook runs from top to bottom, in a kernel of its own, and leaves nothing running."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.servers.prism import prism

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

pytestmark = pytest.mark.filterwarnings("default")  # the kernel's own libraries warn in this process


@pytest.mark.slow
def test_the_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Tokyo" in _text(_run("01_quickstart.ipynb", tmp_path, monkeypatch))


@pytest.mark.slow
def test_typed_answers_become_a_table_and_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = _run("02_typed_answers.ipynb", tmp_path, monkeypatch)
    told = re.search(r"(\d+) of (\d+) fields are right", _text(notebook))
    assert told is not None
    right, fields = map(int, told.groups())
    assert fields == 200
    assert right >= 190
    assert "date: date32[day] not null" in _text(notebook)
    assert any("image/png" in output.get("data", {}) for output in _outputs(notebook))


@pytest.mark.runners
def test_the_notebook_of_streams_runs_on_prism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM", str(prism()))
    text = _text(_run("03_streams_and_runners.ipynb", tmp_path, monkeypatch))
    written = [line.split()[1:3] for line in text.splitlines() if line.startswith("answers")]
    assert sorted(written) == [["Ghana", "Accra"], ["Japan", "Tokyo"], ["Peru", "Lima"]]
    assert "workers" in text, "of the plan"


def _run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """The notebook with its outputs, run where it stands in a checkout: beside the examples."""
    runtime, where = tmp_path / "run", tmp_path / "notebooks"
    where.mkdir()
    (tmp_path / "examples").symlink_to(NOTEBOOKS.parent / "examples")
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    resources = {"metadata": {"path": str(where)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    assert not [output for output in _outputs(notebook) if output.output_type == "error"]
    deadline = time.monotonic() + 60
    while _engines(runtime) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _engines(runtime)
    assert not runtime.exists()
    return notebook


def _outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def _text(notebook: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in _outputs(notebook))


def _engines(runtime: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("MILLRACE_RUNTIME_DIR") == str(runtime) and process.pid != os.getpid():
            found.append(process.pid)
    return found

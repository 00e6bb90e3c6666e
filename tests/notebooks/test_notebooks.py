"""Every notebook runs from top to bottom, in a kernel of its own, and leaves nothing running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from tests.servers.prism import prism

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


ON_PRISM = "03_streams_and_runners.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the kernel's own libraries warn in this process
@pytest.mark.parametrize("name", sorted({path.name for path in NOTEBOOKS.glob("*.ipynb")} - {ON_PRISM}))
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(name, tmp_path, monkeypatch)


@pytest.mark.runners
@pytest.mark.filterwarnings("default")
def test_the_notebook_of_streams_runs_on_prism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM", str(prism()))
    text = _run(ON_PRISM, tmp_path, monkeypatch)
    written = [line.split()[1:3] for line in text.splitlines() if line.startswith("answers")]
    assert sorted(written) == [["Ghana", "Accra"], ["Japan", "Tokyo"], ["Peru", "Lima"]]
    assert "workers" in text, "of the plan"


def _run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the notebook prints."""
    runtime = tmp_path / "run"
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()
    assert not [output for output in _outputs(notebook) if output.output_type == "error"]
    assert "Tokyo" in _text(notebook)
    deadline = time.monotonic() + 60
    while _engines(runtime) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _engines(runtime)
    assert not runtime.exists()
    return _text(notebook)


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

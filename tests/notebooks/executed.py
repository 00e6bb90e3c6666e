"""Runs a notebook from top to bottom in a kernel of its own, and tells what its cells show, as far as runs agree."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
_VARIES = (
    (re.compile(r"\d+ of 200 fields"), "N of 200 fields"),  # a processor without bfloat16 computes in float32
    (re.compile(r"tmp[a-z0-9_]{8}"), "tmp"),  # temporary folders
    (re.compile(r"\d{8}T\d{6}Z"), "TIME"),  # windows
    (re.compile(r"-?\d+\.\d{3,}(e-?\d+)?"), "FLOAT"),  # logarithms: their last digits are the processor's
    (re.compile(r"\s+"), " "),
)


def execute(name: str, folder: Path, runtime: Path, **environment: str) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in `folder`, which has the examples beside it as a checkout has."""
    folder.mkdir()
    (folder.parent / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=600,
        startup_timeout=300,
        iopub_timeout=300,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources=where,
    )
    client.execute(env={**os.environ, "PATH": path, "MILLRACE_RUNTIME_DIR": str(runtime), **environment})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if not _is_noise(each)]
    return notebook


def _is_noise(output: nbformat.NotebookNode) -> bool:
    """Warnings of libraries, and the script that Beam loads from another server for its own widgets."""
    return output.get("name") == "stderr" or "application/javascript" in output.get("data", {})


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The outputs of all cells, in order."""
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def shown(notebook: nbformat.NotebookNode) -> list[tuple[list[str], int]]:
    """The lines of each code cell, sorted since results come as they finish, and its number of images."""
    return [_cell(cell) for cell in notebook.cells if cell.cell_type == "code"]


def differences(now: nbformat.NotebookNode, stored: nbformat.NotebookNode) -> list[str]:
    """What cells show otherwise than they are stored. Of ten lines one may differ: processors round apart."""
    found = []
    for number, ((lines, images), (before, images_before)) in enumerate(zip(shown(now), shown(stored), strict=True), 1):
        changed = list((Counter(lines) - Counter(before)).elements())
        if images != images_before or len(lines) != len(before) or len(changed) > len(lines) // 10:
            found.append(f"code cell {number}: {images} images; new lines: {changed}; stored: {before}")
    return found


def _cell(cell: nbformat.NotebookNode) -> tuple[list[str], int]:
    text = "".join(each.get("text", "") + each.get("data", {}).get("text/plain", "") for each in cell.outputs)
    if cell.source.startswith("%%sh"):  # times, memory, process ids, and what libraries print beside them
        return ["a command's output"] if text.strip() else [], 0
    for pattern, word in _VARIES:
        text = "\n".join(pattern.sub(word, line) for line in text.splitlines())
    images = sum("image/png" in each.get("data", {}) for each in cell.outputs)
    return sorted(line.strip() for line in text.splitlines() if line.strip()), images

"""Runs every notebook, or the named ones, and stores it with its outputs: `make notebooks`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat

from tests.model_manager.backends.gguf_files import write_gguf
from tests.servers.prism import prism

from .executed import NOTEBOOKS, execute

_TEMPORARY = re.compile(r"(/tmp)[a-z0-9_]{8}\b")
"""Names of temporary folders, which say nothing to a reader."""


def main() -> None:
    """Overwrite the notebooks; a cell that fails ends it, and nothing more is written."""
    for path in [NOTEBOOKS / name for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            given = {"PRISM": str(prism()), "GGUF": str(write_gguf(Path(folder, "millrace-tiny.gguf")))}
            notebook = execute(path.name, Path(folder, "notebooks"), Path(folder, "run"), **given)
        text = _TEMPORARY.sub(r"\1", nbformat.writes(notebook))
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()

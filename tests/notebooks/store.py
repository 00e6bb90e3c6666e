"""Runs every notebook, or the named ones, and stores it with its outputs: `make notebooks`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

from tests.servers.prism import prism

from .executed import NOTEBOOKS, execute


def main() -> None:
    """Overwrite the notebooks; a cell that fails ends it, and nothing more is written."""
    for path in [NOTEBOOKS / name for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path.name, Path(folder, "notebooks"), Path(folder, "run"), PRISM=str(prism()))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()

"""The tests that mirror what has changed since the last commit: `make check` runs these.

python -m tests.check.changed
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LAYERS = ("transforms", "serving", "pipelines", "model_manager", "millrace")


def mirrored(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Test files for changed paths, relative to `root`: a test file that changed; of a module the one of its name, else
    all that mirror its room.
    """
    return sorted({str(test.relative_to(root)) for path in changed for test in _tests_of(Path(path), root)})


def _tests_of(path: Path, root: Path) -> Iterable[Path]:
    if path.suffix != ".py" or path.parts[0] not in (*_LAYERS, "tests"):
        return []
    if path.parts[0] == "tests":
        own = root / path
        return [own] if path.name.startswith("test_") and own.is_file() else []
    room = root / "tests" / path.parent
    own = room / f"test_{path.name}"
    return [own] if own.is_file() else room.glob("test_*.py")


def _changed() -> list[str]:
    """Paths that differ from the last commit, and files that git does not know yet."""
    commands = (["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"])
    said = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for command in commands)
    return [path for each in said for path in each.stdout.splitlines()]


if __name__ == "__main__":
    print(*mirrored(_changed()))

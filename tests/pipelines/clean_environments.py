"""Environments that have what this package depends on, and not the package itself."""

import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGE = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "millrace", "src")


def clean_environment(folder: Path, without: Collection[str] = ()) -> Path:
    """An environment with the dependencies of this package, except those named; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for each in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if each.name.split("-")[0] not in {*without, "beam_millrace"}:
            (dependencies / each.name).symlink_to(each)
    (site / "dependencies.pth").write_text(f"{dependencies}\n")  # no .pth file there is read
    missing = subprocess.run([python, "-I", "-c", "import millrace"], capture_output=True, check=False)
    assert missing.returncode, "the environment must not have the package yet"
    return python


def install(python: Path, *what: str | Path) -> None:
    pip(python, "install", "--no-deps", "--no-build-isolation", "--ignore-installed", *map(str, what))


def copied(folder: Path) -> Path:
    """A copy of the package to build in: other tests build in the checkout at the same time."""
    copy = folder / "copy"
    copy.mkdir()
    subprocess.run(["cp", "-rL", *(str(ROOT / name) for name in _PACKAGE), str(copy)], check=True)
    return copy


def checkout_copied(folder: Path) -> Path:
    """A copy of what a checkout packs, links and all."""
    copy = folder / "checkout"
    copy.mkdir()
    folders = sorted({link.resolve().name for link in (ROOT / "millrace").iterdir() if link.is_symlink()})
    subprocess.run(["cp", "-a", *(str(ROOT / name) for name in (*_PACKAGE, *folders)), str(copy)], check=True)
    return copy


def built_wheel(folder: Path) -> Path:
    copy = copied(folder)
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("beam_millrace-*.whl")
    return wheel


def pip(python: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run pip, without an index, on that interpreter's environment."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *arguments, "--no-index", "-q"]
    return subprocess.run(command, check=check, capture_output=True, text=True)

"""Environments that have what this package depends on, and not the package itself."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def clean_environment(folder: Path) -> Path:
    """An environment without this package, with what it depends on; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")  # no .pth file there is read
    missing = subprocess.run([python, "-I", "-c", "import millrace"], capture_output=True, check=False)
    assert missing.returncode, "the environment must not have the package yet"
    return python


def install(python: Path, archive: Path) -> None:
    flags = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "-q"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *flags, str(archive)]
    subprocess.run(command, check=True, capture_output=True, text=True)

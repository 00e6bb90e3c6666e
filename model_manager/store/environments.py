"""Python environments of engines that need packages of their own: where they lie, how one is made, how one is started.

    <cache>/engines/<name>/bin/python     what `millrace engines install NAME` made
    <cache>/engines/source-<hash>/        a link to this package, so that the engine runs the code of who started it

An environment has the engine's pinned packages and those that the inference process itself imports. It is made beside
its place and renamed, so one that is there is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ..wire.backends import BACKENDS, Backend
from ..wire.config import ModelConfig
from ..wire.engine_extra import check_engine_extra
from ..wire.errors import ConfigError, ModelLoadFailed
from .cache_folder import cache_folder

PROCESS_PACKAGES = ("llguidance", "msgspec>=0.21", "numpy", "psutil", "tokenizers>=0.21")
"""What the inference process imports whatever the engine."""
_PINS = "packages.txt"
"""What an environment was made with."""
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that belong to the Python that starts the engine."""


def environment_python(name: str) -> Path:
    """The Python of a back end's environment, whether it is there or not."""
    return cache_folder() / "engines" / name / "bin" / "python"


def check_engine(config: ModelConfig) -> None:
    """Raises ModelLoadFailed or ConfigError, with what to do, where the model's engine cannot start on this machine."""
    check_engine_extra(config)
    engine_python(config)


def engine_python(config: ModelConfig) -> Path | None:
    """The Python that runs the engine; None for the one that runs this.

    Raises ModelLoadFailed, with the command that makes it, where it is not there.
    """
    backend = BACKENDS[config.backend]
    if not backend.packages:
        return None
    named = config.backend_python
    python = Path(named).expanduser() if named else environment_python(backend.name)
    if not os.access(python, os.X_OK):
        if named:
            raise ConfigError(f"backend_python={named!r}: takes the path of a Python that can be run")
        raise ModelLoadFailed(
            f"the back end {backend.name} has no Python environment on this machine:"
            f" `millrace engines install {backend.name}` makes it, or backend_python names another"
        )
    return python


def engine_environment() -> dict[str, str]:
    """Environment variables for an engine in another Python, which finds this package and none beside it."""
    package = Path(__file__).absolute().parents[2]
    source = cache_folder() / "engines" / f"source-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    link = source / "millrace"
    source.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(package)
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return kept | {"PYTHONPATH": str(source), "PYTHONNOUSERSITE": "1"}


def state(backend: Backend) -> str:
    """A phrase: whether the back end starts here, tried by importing it in its Python, and else what to do."""
    if not backend.packages:
        missing = [name for name in backend.modules if find_spec(name) is None]
        return f"lacks {', '.join(missing)}: pip install 'beam-millrace[engine]'" if missing else "starts here"
    install_it = f"millrace engines install {backend.name}"
    python = environment_python(backend.name)
    if not python.exists():
        return f"not installed: {install_it}"
    if not _is_current(backend, python.parents[1]):
        return f"installed with other versions: {install_it}"
    tried = [str(python), "-P", "-c", f"import {', '.join(backend.modules)}"]
    said = subprocess.run(tried, env=engine_environment(), capture_output=True, text=True, check=False)
    if said.returncode:
        reason = (said.stderr.strip().splitlines() or [f"status {said.returncode}"])[-1]
        return f"installed, but does not start: {reason[:200]}"
    return "installed, starts here"


def _is_current(backend: Backend, place: Path) -> bool:
    with contextlib.suppress(OSError):
        return (place / _PINS).read_text() == _pins(backend)
    return False


def _pins(backend: Backend) -> str:
    return "\n".join([*backend.packages, *backend.overrides, *PROCESS_PACKAGES])


def install(backend: Backend) -> Path:
    """Make the back end's environment, replacing one that is there; returns its Python. Shows pip's output.

    Raises ConfigError for a back end that needs none, ModelLoadFailed where a package cannot be installed.
    """
    if not backend.packages:
        raise ConfigError(f"backend={backend.name!r}: runs in millrace's own Python, and needs no environment")
    place = environment_python(backend.name).parent.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{backend.name}-", dir=place.parent))
    try:
        _run([sys.executable, "-m", "venv", *(["--without-pip"] if _uv() else []), str(made)], backend)
        _install(backend, made)
        (made / _PINS).write_text(_pins(backend))
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return environment_python(backend.name)


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _install(backend: Backend, place: Path) -> None:
    uv, python = _uv(), str(place / "bin" / "python")
    if backend.overrides and uv is None:
        raise ModelLoadFailed(f"the environment of the back end {backend.name} is made by uv: pip install uv")
    overrides = place / "overrides.txt"
    overrides.write_text("\n".join(backend.overrides))
    by_uv = [str(uv), "pip", "install", "--python", python, "--override", str(overrides)]
    _run([*(by_uv if uv else [python, "-m", "pip", "install"]), *backend.packages, *PROCESS_PACKAGES], backend)


def _run(command: list[str], backend: Backend) -> None:
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ModelLoadFailed(
            f"the environment of the back end {backend.name} is not made: {' '.join(command[:4])} … ended with status"
            f" {done.returncode}, and said why above"
        )

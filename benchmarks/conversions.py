"""Checkpoints in the formats that peers read, made from ours by their own tools and kept beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import CTRANSLATE2_EXPORT, GGUF_EXPORT, OPENVINO_EXPORT, Environment, InstalledEngine


@dataclass(frozen=True)
class Conversion:
    """A tool of an environment, and its arguments for a source, a target and a dtype."""

    name: str
    environment: Environment | InstalledEngine
    tool: str | None
    """A script beside its Python; None: the arguments are for Python."""
    arguments: Callable[[Path, Path, str], list[str]]

    def convert(self, checkpoint: Path, dtype: str) -> Path:
        """The converted checkpoint's folder; made if it is not there. Raises SystemExit where that fails."""
        target = checkpoint.with_name(f"{checkpoint.name}.{self.name}-{dtype}")
        if not target.exists():
            self._make(checkpoint, target, dtype)
        return target

    def _make(self, checkpoint: Path, target: Path, dtype: str) -> None:
        print(f"converting {checkpoint} to {target}", flush=True)
        python = self.environment.python()
        tool = [python.with_name(self.tool)] if self.tool else []  # its first line may name another Python
        unfinished = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [*map(str, [python, *tool]), *self.arguments(checkpoint, unfinished, dtype)]
        done = subprocess.run(command, capture_output=True, text=True, env=_offline(), check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        unfinished.rename(target)


def _offline() -> dict[str, str]:
    """Nothing is to be fetched; and the environment is the tool's own, so our modules are none of its."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"HF_HUB_OFFLINE": "1"}


def _export_openvino(source: Path, target: Path, dtype: str) -> list[str]:
    weights = {"float32": "fp32", "bfloat16": "fp16", "int8": "int8"}[dtype]
    task = ["--task", "text-generation-with-past", "--weight-format", weights]
    return ["export", "openvino", "--model", str(source), *task, str(target)]


OPENVINO_IR = Conversion("openvino", OPENVINO_EXPORT, "optimum-cli", _export_openvino)


def _export_ctranslate2(source: Path, target: Path, dtype: str) -> list[str]:
    return ["--model", str(source), "--output_dir", str(target), "--quantization", dtype]


CTRANSLATE2_MODEL = Conversion("ctranslate2", CTRANSLATE2_EXPORT, "ct2-transformers-converter", _export_ctranslate2)


ENGINE_OPENVINO_IR = Conversion("engine-openvino", InstalledEngine("openvino"), "optimum-cli", _export_openvino)
"""With the versions of the back end's own export."""
ENGINE_CTRANSLATE2_MODEL = Conversion(
    "engine-ctranslate2", InstalledEngine("ctranslate2"), "ct2-transformers-converter", _export_ctranslate2
)


def _export_gguf(source: Path, target: Path, dtype: str) -> list[str]:
    return [str(Path(__file__).with_name("gguf_file.py")), str(source), str(target), dtype]


GGUF = Conversion("gguf", GGUF_EXPORT, None, _export_gguf)
"""A folder with `model.gguf`."""

"""Kernels of Triton where there is no GPU: run in its interpreter, and compiled for GPUs that are not here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def interpreted(checks: str, names: Iterable[str]) -> dict[str, str]:
    """What became of checks of a module beside this one, in a process of its own that interprets kernels: "" or why."""
    command = [sys.executable, "-m", f"tests.model_manager.engine.{checks}", *names]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def compiled(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], capability: int = 90, **options: Any
) -> tuple[int, int, int]:
    """(registers, bytes of stack, bytes of shared memory) of a kernel for a GPU of that compute capability."""
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names)
               if signature.get(name, "").startswith("*") or name.endswith("_stride")}  # fmt: skip
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    binary: Any = triton.compile(source, target=target, options={"enable_fp_fusion": True, **options})
    report = _resources(binary.asm["cubin"])
    registers, stack = (int(re.findall(rf"{name}:(\d+)", report)[-1]) for name in ("REG", "STACK"))
    return registers, stack, int(binary.metadata.shared)


def _resources(cubin: bytes) -> str:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_TOOLS / "cuobjdump"), "-res-usage", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

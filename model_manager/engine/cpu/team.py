"""Compiles kernels and runs them on every core, in the threads that torch computes with.

Two thread pools would wait for each other's cores, so a kernel is handed to the OpenMP runtime that torch has loaded.
Knows no kernel.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .kernel_cache import compiled

log = logging.getLogger(__name__)


class Kernel:
    """A compiled function of one address; keeps its machine code alive.

    `sources` are the files that it is made of, by which the code is found on disk at the next start (kernel_cache.py).
    """

    def __init__(self, function: Callable[[int], None], sources: Sequence[Path]) -> None:
        self._compiled = compiled(function, sources)
        self.address = int(self._compiled.address)


@functools.cache
def kernel(sources: tuple[ModuleType, ...], make: Callable[..., Callable[[int], None]], *variant: int) -> Kernel:
    """The kernel that `make(*variant)` writes out of these modules: one in a process, however many models it loads."""
    return Kernel(make(*map(int, variant)), [Path(inspect.getfile(module)) for module in sources])


class Team:
    """Runs kernels on `size` threads."""

    def __init__(self, size: int) -> None:
        found: tuple[Any, int] = _torch_openmp() if size > 1 else (None, 0)
        self._parallel, self.count_threads = found
        """`count_threads` is the address of a function that says how many threads run the kernel, 0 for one alone: the
        runtime may give fewer than asked for (OMP_THREAD_LIMIT, OMP_DYNAMIC).
        """
        self.size = size if self._parallel is not None else 1
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_int64)

    def run(self, kernel: Kernel, argument: int) -> None:
        """Call the kernel once in every thread of the team; returns when all have returned."""
        if self._parallel is None:
            self._alone(kernel.address)(argument)
        else:
            self._parallel(kernel.address, argument, self.size, 0)


def _torch_openmp() -> tuple[Any, int]:
    """`GOMP_parallel` of the OpenMP runtime that torch brought into this process, or None, which the log tells; and
    the address of its `omp_get_num_threads`.
    """
    path = _loaded_library("libgomp") or _loaded_library("libomp") or _loaded_library("libiomp")
    library = ctypes.CDLL(path) if path else None
    parallel = getattr(library, "GOMP_parallel", None)
    if parallel is None:
        log.warning("attention runs on one thread: torch has loaded no OpenMP runtime with GOMP_parallel")
        return None, 0
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    assert library is not None
    return parallel, ctypes.cast(library.omp_get_num_threads, ctypes.c_void_p).value or 0


def _loaded_library(name: str) -> str | None:
    """Path of a library as this process has mapped it (Linux)."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return next((path for path in sorted(paths) if Path(path).name.startswith(name)), None)

"""Memory that a process on this machine may still take. Knows nothing of models."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import psutil

_GIB = 2**30
_ENGINE_SPACE_GIB, _ENGINE_GIB = 4.5, 0.8
"""What an engine on a CPU takes with a model of a few MB: address space, most of it for libraries, and memory."""
ENGINE_BYTES = int(_ENGINE_GIB * _GIB)
_SHORTAGE = ("DefaultCPUAllocator", "annot allocate memory", "failed to map segment")


def free_memory(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes this process may still take: what the machine has available, within its control group's limits."""
    return min([int(psutil.virtual_memory().available), *_cgroup_headroom(cgroups, own)])


def is_shortage(error: BaseException) -> bool:
    """True if memory ran out; torch's CPU allocator and the loader of libraries have no error class for it."""
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or refused or any(words in str(error) for words in _SHORTAGE)


def shortage() -> str:
    """How much memory there is, what an engine takes, and what to change."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    beside = "beside its model's weights and KV cache"
    if limit != resource.RLIM_INFINITY:
        has = f"a process may have {limit / _GIB:.1f} GiB of address space (ulimit -v)"
        return f"{has}, and an engine takes about {_ENGINE_SPACE_GIB} GiB {beside}: raise the limit"
    has = f"{free_memory() / _GIB:.1f} GiB of memory are free"
    return f"{has}, and an engine takes about {_ENGINE_GIB} GiB {beside}: use a machine or a container with more memory"


def _cgroup_headroom(cgroups: Path, own: Path) -> list[int]:
    """Limit minus use of each control group that this process is in (v2 and v1), their parents included."""
    folders: list[tuple[Path, str, str]] = []
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            folders += [(folder, "memory.max", "memory.current") for folder in _upwards(cgroups, path)]
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            folders += [(folder, *names) for folder in _upwards(root, path)]
    return [room for folder, limit, use in folders if (room := _headroom(folder, limit, use)) is not None]


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it; inside a container the path may not exist, its root then counts."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _headroom(folder: Path, limit_name: str, use_name: str) -> int | None:
    limit, use = _text(folder / limit_name).strip(), _text(folder / use_name).strip()
    if not limit.isdigit() or not use.isdigit():
        return None
    return max(0, int(limit) - int(use) + _reclaimable(folder))


def _reclaimable(folder: Path) -> int:
    """File pages that the kernel gives up before it refuses memory; a checkpoint just read is full of them."""
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

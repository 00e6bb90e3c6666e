"""Cores that a process of this machine, or container, may use, and memory that it may still take. Knows no model."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import psutil

_GIB = 2**30
_ENGINE_SPACE_GIB, _ENGINE_GIB = 4.5, 0.8
"""What an engine on a CPU takes with a model of a few MB: address space, most of it for libraries, and memory."""
ENGINE_BYTES = int(_ENGINE_GIB * _GIB)
_SHORTAGE = ("DefaultCPUAllocator", "annot allocate memory", "failed to map segment")


def usable_cores() -> int:
    """Cores that this process may use, ≥ 1: by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    share, _, period = (quota.read_text() if quota.is_file() else "max").partition(" ")
    return max(1, min(cores, round(int(share) / int(period)))) if share.isdigit() else cores


def cores_of_engines() -> int:
    """Cores that engines on the CPU share: OMP_NUM_THREADS of them if it is set, else all usable ones.

    OMP_NUM_THREADS may be a list, one number for each level of nested parallel regions: the first one counts.
    """
    told = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) else usable_cores()


def free_memory(
    cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup"), proc: Path = Path("/proc")
) -> int:
    """Bytes this process may still take: what the machine has available, within its control group's limits.

    Pages of files count as free for the kernel, also those that other processes have mapped and need: the weights of
    their models. These do not count as free here; this process's own do. A tmpfs that nobody has mapped hides as much
    of what others have mapped: no count tells the two apart.
    """
    machine, mapped = _counts(proc / "meminfo"), _counts(proc / "self" / "status").get("RssFile", 0)
    others = max(0, machine.get("Mapped", 0) - machine.get("Shmem", 0) - mapped)
    available = max(0, int(psutil.virtual_memory().available) - others)
    return min([available, *_cgroup_headroom(cgroups, own, mapped)])


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


def _counts(file: Path) -> dict[str, int]:
    """Bytes by name, of lines "NAME: COUNT kB"."""
    lines = (line.split() for line in _text(file).splitlines())
    return {line[0].removesuffix(":"): int(line[1]) * 1024 for line in lines if line[2:] == ["kB"]}


def _cgroup_headroom(cgroups: Path, own: Path, mapped: int) -> list[int]:
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
    return [room for folder, limit, use in folders if (room := _headroom(folder, limit, use, mapped)) is not None]


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it; inside a container the path may not exist, its root then counts."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _headroom(folder: Path, limit_name: str, use_name: str, mapped: int) -> int | None:
    limit, use = _text(folder / limit_name).strip(), _text(folder / use_name).strip()
    if not limit.isdigit() or not use.isdigit():
        return None
    return max(0, int(limit) - int(use) + _reclaimable(folder, mapped))


def _reclaimable(folder: Path, mapped: int) -> int:
    """File pages that the kernel gives up before it refuses memory; a checkpoint just read is full of them.

    `mapped`: bytes of files that this process has mapped.
    """
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    counts = {name.removeprefix("total_"): int(count) for name, count in lines}
    others = max(0, counts.get("file_mapped", counts.get("mapped_file", 0)) - counts.get("shmem", 0) - mapped)
    own = min(mapped, counts.get("active_file", 0))  # there once they have been mapped a few times
    return max(0, counts.get("inactive_file", 0) + own - others)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Memory that a process on this machine may still take. Knows nothing of models."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_memory(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes this process may still take: what the machine has available, within its control group's limits."""
    return min([int(psutil.virtual_memory().available), *_cgroup_headroom(cgroups, own)])


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

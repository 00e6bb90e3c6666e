"""How many cores engines have, and what is free: the machine's memory, within the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from millrace.model_manager.wire.machine import cores_of_engines, free_memory, usable_cores

_MIB = 2**20


@pytest.mark.parametrize(("told", "cores"), [("3", 3), ("", usable_cores()), ("0", usable_cores())])
def test_the_environment_may_say_how_many_cores_engines_have(
    told: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert cores_of_engines() == cores


def test_a_version_2_control_group_limits_what_is_free(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "job"
    _write(group, {"memory.max": "max\n", "memory.current": "5"})
    _write(
        group / "task", {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 60"}
    )
    assert free_memory(tmp_path / "fs", _own(tmp_path, "0::/job/task\n")) == 1000 - 700 + 60


def test_a_parent_groups_limit_counts(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "job"
    _write(group, {"memory.max": "100\n", "memory.current": "90\n"})
    _write(group / "task", {"memory.max": "1000\n", "memory.current": "700\n"})
    assert free_memory(tmp_path / "fs", _own(tmp_path, "0::/job/task\n")) == 10


def test_in_a_container_the_groups_own_path_is_not_there_and_the_root_counts(tmp_path: Path) -> None:
    _write(tmp_path / "fs", {"memory.max": "4096\n", "memory.current": "96\n"})
    assert free_memory(tmp_path / "fs", _own(tmp_path, "0::/somewhere/outside\n")) == 4000


def test_a_version_1_control_group_limits_what_is_free(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "memory" / "job"
    usage = {
        "memory.limit_in_bytes": "1000\n",
        "memory.usage_in_bytes": "400\n",
        "memory.stat": "total_inactive_file 7",
    }
    _write(group, usage)
    own = _own(tmp_path, "12:cpu,cpuacct:/x\n3:memory:/job\n")
    assert free_memory(tmp_path / "fs", own) == 607


def test_files_that_other_processes_have_mapped_are_not_free_in_a_control_group(tmp_path: Path) -> None:
    """500 KiB are mapped, 100 KiB of them by this process. So 400 KiB of the 900 KiB of inactive pages are not free."""
    stat = "\n".join(
        f"{name} {kib << 10}" for name, kib in (("inactive_file", 900), ("file_mapped", 500), ("shmem", 0))
    )
    limits = {"memory.max": str(2000 << 10), "memory.current": str(1500 << 10), "memory.stat": stat}
    _write(tmp_path / "fs", limits)
    _write(tmp_path / "proc" / "self", {"status": "Name:\tpython\nRssFile:\t     100 kB\nThreads:\t1\n"})
    found = free_memory(tmp_path / "fs", _own(tmp_path, "0::/\n"), tmp_path / "proc")
    assert found == (2000 - 1500 + 900 - 400) << 10


def test_what_this_process_has_mapped_for_long_is_free_for_it_in_a_control_group(tmp_path: Path) -> None:
    """The kernel moves such pages from the inactive to the active ones."""
    stat = f"file_mapped {500 << 10}\ninactive_file {300 << 10}\nactive_file {800 << 10}"
    limits = {"memory.max": str(2000 << 10), "memory.current": str(1500 << 10), "memory.stat": stat}
    _write(tmp_path / "fs", limits)
    _write(tmp_path / "proc" / "self", {"status": "RssFile:\t     500 kB\n"})
    found = free_memory(tmp_path / "fs", _own(tmp_path, "0::/\n"), tmp_path / "proc")
    assert found == (2000 - 1500 + 300 + 500) << 10


def test_files_that_other_processes_have_mapped_are_not_free_on_the_machine(tmp_path: Path) -> None:
    has = int(psutil.virtual_memory().available) >> 10
    mapped = f"MemTotal: 9 kB\nMapped:  {has // 2 + 1005} kB\nShmem:  5 kB\nHugePages_Total:  0\n"
    _write(tmp_path / "proc", {"meminfo": mapped})
    _write(tmp_path / "proc" / "self", {"status": "RssFile:\t1000 kB\n"})
    assert free_memory(tmp_path, tmp_path / "nothing", tmp_path / "proc") < has * 1024 * 3 // 4
    _write(tmp_path / "proc" / "self", {"status": f"RssFile:\t{has} kB\n"})
    assert free_memory(tmp_path, tmp_path / "nothing", tmp_path / "proc") > has * 1024 * 3 // 4


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path / "nothing") > 100 * _MIB


def _own(folder: Path, text: str) -> Path:
    file = folder / "cgroup"
    file.write_text(text)
    return file


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)

"""Jobs with a fault that nobody is killed for: a full disk, too little memory, damaged weights, a device's errors.

`clock` and `clock-libc` move the time of day back and forth, as Python's `time.time` and as the C library tell it.
Each job runs with the fault to its end. If it failed or has dead letters, it runs again with --resume and without the
fault.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL

from . import control_groups
from .job import Job

_WITHIN = 900.0
_FILE = 48 * 1024
_MEMORY = 600 * 2**20
"""Bytes for all processes of a job together; they need more."""
_CLOCK = Path(__file__).with_name("jumping_clock.c")
_WEIGHTS = "model.safetensors"
_MARKED = 0.5
"""Where a file of weights is cut, or damaged: that share of it is whole."""


def _limited(what: int, value: int) -> Callable[[Job], None]:
    return lambda job: job.limits.update({what: value})


def _in_a_small_cgroup(job: Job) -> None:
    job.groups = [control_groups.made("memory")]
    (job.groups[0] / "memory.limit_in_bytes").write_text(str(_MEMORY))


def _leave_cgroup(job: Job) -> None:
    groups, job.groups = job.groups, []
    for group in groups:
        control_groups.remove(group, _WITHIN)


def _at_a_seam(name: str) -> Callable[[Job], None]:
    def put_in(job: Job) -> None:
        job.more_environment = {"CHAOS_FAULT": name, "CHAOS_SEED": str(job.seed)}

    return put_in


def _clock_of_libc(job: Job) -> None:
    library = job.folder / "jumping_clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
    job.more_environment = {"LD_PRELOAD": str(library)}


def _cut(job: Job) -> None:
    weights = model_of(job) / _WEIGHTS
    weights.write_bytes(weights.read_bytes()[: int(weights.stat().st_size * _MARKED)])


def _header_damaged(job: Job) -> None:
    _overwritten(job, 64, b"\xff" * 64)


def _not_finite(job: Job) -> None:
    """4 KiB in the middle of the file are NaNs, whether read as float32 or as bfloat16."""
    weights = model_of(job) / _WEIGHTS
    begin = int(weights.stat().st_size * _MARKED) // 4 * 4
    _overwritten(job, begin, b"\xff" * 4096)


def _overwritten(job: Job, at: int, what: bytes) -> None:
    with (model_of(job) / _WEIGHTS).open("r+b") as stream:
        stream.seek(at)
        stream.write(what)


FAULTS: dict[str, Callable[[Job], None]] = {
    "full-disk": _limited(resource.RLIMIT_FSIZE, _FILE),
    "no-memory": _in_a_small_cgroup,
    "half-written-weights": _cut,
    "damaged-weights": _header_damaged,
    "weights-not-finite": _not_finite,
    "nan-logits": _at_a_seam("nan-logits"),
    "gpu-error": _at_a_seam("gpu-error"),
    "clock": _at_a_seam("clock"),
    "clock-libc": _clock_of_libc,
}
"""What a fault does to a job before it starts, by name."""


def model_of(job: Job) -> Path:
    """The job's own copy of the embedded model."""
    return job.folder.parent / "model"


def whole_model(job: Job) -> None:
    """Put the model there, or put it right."""
    shutil.rmtree(model_of(job), ignore_errors=True)
    shutil.copytree(resolve(EMBEDDED_MODEL), model_of(job))


def endured(job: Job, fault: str, expected: dict[str, str]) -> dict[str, Any]:
    """The job under the fault, and after it. `expected`: the texts of an undisturbed one, by id."""
    FAULTS[fault](job)
    status = _ended(job)
    found = {"fault": fault, "status": status, "dead_letters": _dead_letters(job)}
    if status:
        found["said"] = _last_line(job)
    job.limits.clear()
    _leave_cgroup(job)
    job.more_environment = {}
    whole_model(job)
    if status or found["dead_letters"]:
        found["status_resumed"] = _ended(job, "--resume")
    times, texts = job.times_each(), job.texts()
    return found | {
        "rows": len(expected),
        "lost": sum(identity not in texts for identity in expected),
        "doubled": sum(count - 1 for count in times.values()),
        "texts_changed": sum(text != expected[identity] for identity, text in texts.items()),
    }


def _ended(job: Job, *more: str) -> int:
    job.start(*more)
    return job.wait(_WITHIN)


def _last_line(job: Job) -> str:
    lines = (job.folder / "stderr").read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""


def _dead_letters(job: Job) -> int:
    return len(job.times_each()) - len(job.texts())

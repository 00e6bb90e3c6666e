"""Fuzzes what the product reads of others, guided by coverage, for some time.

    python -m tests.fuzz wire --seconds 300
    python -m tests.fuzz wire rows constraints templates checkpoints --seconds 3600

Parts of five minutes at most, each in a process of its own under limits of memory and time. Seconds and inputs add up
in tests/fuzz/corpora/record.json over all calls; the smallest inputs that reach all lines are kept beside it, and
tests/fuzz/test_corpora.py gives these to the product again. An input that crashed it, hung or took too much memory is
in out/fuzz/TARGET-defects, and the status is 1. Atheris is installed in out/fuzz/atheris on first use.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import corpora
from tests.fuzz.target import NAMES, quiet_folder, target

ROOT = Path(__file__).parents[2]
WORK = ROOT / "out" / "fuzz"
_ATHERIS = "atheris==3.0.0"
_LONGEST_PART = 300


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser("tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("targets", nargs="+", choices=NAMES, help="what to fuzz, one after the other")
    made.add_argument("--seconds", type=int, default=300, help="seconds for each target")
    made.add_argument(
        "--mended", action="store_true", help="fuzz nothing; keep inputs that were defects, for the tests"
    )
    return made


def main() -> int:
    """The status: 1 if there is a defect."""
    options = parser().parse_args()
    defects = 0
    for name in options.targets:
        if not options.mended:
            defects += fuzz(name, options.seconds)
        print(
            f"{name}: {keep(name, mended=options.mended)} inputs kept; so far {corpora.record().get(name, {})}",
            flush=True,
        )
    return int(defects > 0)


def fuzz(name: str, seconds: int) -> int:
    """Fuzz a target for so long. Returns how many defects were found; each ends a part, and the next one goes on."""
    folder, left, defects = _inputs(name), seconds, 0
    while left > 0:
        part = min(left, _LONGEST_PART)
        figures = run_part(name, folder, part)
        corpora.add_to_record(name, figures)
        defects += int(figures["defects"])
        left -= max(int(figures["seconds"]), 1)
    return defects


def run_part(name: str, folder: Path, seconds: int) -> dict[str, float]:
    """One child; its figures: seconds on the wall and of the processor, inputs, MiB at its highest, defects."""
    log = Path(f"{folder}.log")
    command = [sys.executable, "-m", "tests.fuzz.part", name, str(folder), str(seconds), str(secrets.randbelow(2**31))]
    used, started = _processor_seconds(), time.monotonic()
    with log.open("wb") as said, tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory()) as temporary:
        around = _environment() | {"TMPDIR": temporary}
        ended = subprocess.run(command, stdout=said, stderr=said, env=around, cwd=ROOT, check=False)
    told = log.read_text(errors="replace")
    if ended.returncode:
        print(f"{name}: status {ended.returncode}\n{told[-4000:]}", flush=True)
    return {
        "seconds": min(time.monotonic() - started, seconds),
        "processor_seconds": _processor_seconds() - used,
        "inputs": _figure("number_of_executed_units", told),
        "most_mib": _figure("peak_rss_mb", told),
        "defects": float(ended.returncode != 0),
    }


def keep(name: str, *, mended: bool) -> int:
    """Keep the inputs that reach all that was reached. Returns how many."""
    found = [each.read_bytes() for each in sorted(_inputs(name).iterdir())]
    were = [each.read_bytes() for each in sorted(_defects(name).glob("*"))] if mended else []
    with quiet_folder(_memory()):
        return corpora.keep(name, target(name).run, [*found, *corpora.kept(name)], were)


def _defects(name: str) -> Path:
    return WORK / f"{name}-defects"


def _inputs(name: str) -> Path:
    """The folder of a target's inputs, with the seeds and those that are kept."""
    folder = WORK / name
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for number, data in enumerate([*target(name).seeds, *corpora.kept(name)]):
            (folder / f"seed-{number:04}").write_bytes(data)
    return folder


def _environment() -> dict[str, str]:
    """With Atheris, and folders of runtime and cache that nobody else uses."""
    packages = WORK / "atheris"
    if not packages.is_dir():
        command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable]
        subprocess.run([*command, "--target", str(packages), _ATHERIS], check=True)
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    folders = {"MILLRACE_RUNTIME_DIR": WORK / "runtime", "MILLRACE_CACHE_DIR": WORK / "cache"}
    return os.environ | {name: str(folder) for name, folder in folders.items()} | {"PYTHONPATH": ":".join(paths)}


def _memory() -> str | None:
    """A folder in memory, where the machine has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figure(name: str, told: str) -> float:
    found = re.search(rf"stat::{name}:\s+(\d+)", told)
    return float(found[1]) if found else 0.0


if __name__ == "__main__":
    sys.exit(main())

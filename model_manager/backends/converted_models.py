"""Models in the formats of other engines, converted once on a machine and kept in the cache folder.

A conversion is written beside its place and renamed, under a lock: two engines that start together make one, and one
that is there is whole. A converter ends with its engine, and each conversion writes into a folder of its own: a killed
engine, whose lock is free at once, leaves nothing that writes into the next one's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from ..wire.config import ModelConfig, cache_folder
from ..wire.die_with_parent import with_this_process
from ..wire.errors import ModelLoadFailed


def converted_model(config: ModelConfig, kind: str, make: Callable[[Path], None]) -> Path:
    """The folder of the model's conversion; `make` writes it into the folder that it is given, where it is not there.

    `kind` names the format and the version of what converts, so that another version converts again.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.model.rsplit("/", 1)[-1])
    digest = hashlib.sha256(f"{config.model}\0{config.revision}".encode()).hexdigest()[:12]
    place = cache_folder() / "conversions" / f"{name}-{kind}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            for stale in place.parent.glob(f"{place.name}*.unfinished"):
                shutil.rmtree(stale, ignore_errors=True)
            unfinished = place.with_name(f"{place.name}.{uuid.uuid4().hex}.unfinished")
            try:
                make(unfinished)
                unfinished.rename(place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return place


def run_converter(config: ModelConfig, command: Sequence[str], what: str) -> None:
    """Run a converter, which imports nothing of ours and ends with this process; raises ModelLoadFailed with the last
    line that it wrote.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(with_this_process(command), capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing")
        raise ModelLoadFailed(f"{config.model}: {what} failed: {last}")

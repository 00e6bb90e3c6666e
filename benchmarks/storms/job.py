"""A job in a folder of its own, written by as many launchers as it takes; what it has written, and what it left."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]

from tests.job_commands import job_command
from tests.json_lines import rows_of, write_rows
from tests.runtime_folders import processes_of

from .confined import confined
from .held import Held
from .seam_tokens import counted

_FILES = 16
_AT_START = Path(__file__).with_name("at_start")
"""What Python imports at the start of each process."""
_MODULES = {
    "engine": "millrace.model_manager.engine.process",
    "manager": "millrace.model_manager.manager.process",
    "worker": "millrace.pipelines.runners.sdk_worker",
    "launcher": "millrace",
    "prism": "prism",
}
"""Roles, by a word of the command line."""
_LOOK = 0.5
"""Seconds between two looks at what its processes hold."""


def prompts(rows: int, seed: int) -> list[dict[str, Any]]:
    """Rows, half of them greedy, half sampled with seeds: in float32 their texts depend on nothing else."""
    rnd = random.Random(seed)
    made = [{"id": f"r{n}", "prompt": f"What is {rnd.randrange(100)} + {rnd.randrange(100)}?"} for n in range(rows)]
    return [row | ({"temperature": 1.0, "seed": n} if n % 2 else {"temperature": 0}) for n, row in enumerate(made)]


@dataclass
class Job:
    """`millrace run` with one output. Everything that it needs or leaves is in `folder`."""

    folder: Path
    flags: Sequence[str]
    places: tuple[str, str] | None = None
    """Where it reads and writes; by default files of its folder."""
    more_environment: dict[str, str] = field(default_factory=dict)
    """What its processes get beside `surroundings`."""
    limits: dict[int, int] = field(default_factory=dict)
    """Limits of its processes, as `resource` names them."""
    groups: list[Path] = field(default_factory=list)
    """The control groups of its processes, where they are not this process's."""
    servers: dict[str, Callable[[], list[psutil.Process]]] = field(default_factory=dict)
    """Further roles: processes of its runner's servers."""
    seed: int = 1
    """Draws the moments of faults."""
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        for name in ("tmp", "out", "in", "tokens"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._known: dict[Path, int] = {}
        self._written: set[str] = set()
        self._held = Held()
        self._looked_at = 0.0

    @property
    def runtime(self) -> Path:
        """The runtime folder of its processes."""
        return self.folder / "rt"

    @cached_property
    def surroundings(self) -> dict[str, str]:
        """Environment of its processes, and of the servers of its runner."""
        own = {"MILLRACE_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(self.folder / "tmp")}
        own["CHAOS_TOKENS"] = str(self.folder / "tokens")
        path = os.pathsep.join([str(_AT_START), *(entry for entry in sys.path if entry)])
        return {**os.environ, "PYTHONPATH": path, **own}

    def ask(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write the input."""
        for number in range(_FILES):
            write_rows(self.folder / "in" / f"rows-{number:02}.jsonl", rows[number::_FILES])

    def start(self, *more: str) -> None:
        """Start a launcher; its output goes to files, which are the last one's; `errors` has the errors of all."""
        self._keep_errors()
        files = (self.folder / "in" / "rows-*.jsonl", self.folder / "out" / "c")
        command = job_command("run", *(self.places or files))
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                confined([*command, *self.flags, *more], self.limits, self.groups),
                env=self.surroundings | self.more_environment,
                text=True,
                stdout=out,
                stderr=err,
            )

    def _keep_errors(self) -> None:
        if (said := self.folder / "stderr").exists():
            with (self.folder / "errors").open("ab") as all_of_them:
                all_of_them.write(said.read_bytes())

    def kill(self) -> None:
        """End the launcher with SIGKILL, and wait for its end."""
        assert self.process is not None, "it was started"
        self.process.kill()
        self.process.wait()

    def status(self) -> int | None:
        """How the launcher ended; None while it runs. Now and then it looks at what the job's processes hold."""
        assert self.process is not None, "it was started"
        if (status := self.process.poll()) is None and time.monotonic() > self._looked_at + _LOOK:
            self._look()
        return status

    def _look(self) -> None:
        self._held.look(each.pid for each in processes_of(self.runtime))
        self._looked_at = time.monotonic()

    def wait(self, within: float) -> int:
        """How the launcher ended; raises TimeoutError, and kills it, if it goes on for so many seconds."""
        deadline = time.monotonic() + within
        while (status := self.status()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"the job did not end\n{self.said()[-3000:]}")
            time.sleep(0.1)
        return status

    def said(self) -> str:
        """What the last launcher printed."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))

    def victims(self, role: str) -> list[psutil.Process]:
        """Its processes of a role."""
        if role == "launcher":
            return [psutil.Process(self.process.pid)] if self.process and self.process.poll() is None else []
        if role in self.servers:
            return self.servers[role]()
        word = _MODULES[role]
        found = [each for each in processes_of(self.runtime) if _is_of(each, word)]
        return sorted(found, key=lambda process: int(process.pid))

    def written(self) -> int:
        """How many rows have a completion that is on disk; reads what is new alone."""
        for path in [*self.folder.glob("out/c.tmp/*/completions-*.jsonl"), *self.folder.glob("out/c-*.jsonl")]:
            try:
                self._read(path)
            except FileNotFoundError:  # it has just become a part of another
                continue
        return len(self._written)

    def _read(self, path: Path) -> None:
        with path.open("rb") as stream:
            stream.seek(self._known.get(path, 0))
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._written.add(msgspec.json.decode(line)["id"])
                self._known[path] = self._known.get(path, 0) + len(line)

    def texts(self) -> dict[str, str]:
        """Finished completions by id."""
        return {row["id"]: row["text"] for row in rows_of(self.folder, "out/c-*.jsonl")}

    def times_each(self) -> Counter[str]:
        """How often each row is in the finished output, dead letters included."""
        rows = rows_of(self.folder, "out/c-*.jsonl") + rows_of(self.folder, "out/c.dead_letters-*.jsonl")
        return Counter(row["id"] for row in rows)

    def tokens(self) -> dict[str, int]:
        """Tokens that its engines have computed, and generated, killed engines included."""
        computed, generated = counted(self.folder / "tokens")
        return {"computed": computed, "generated": generated}

    def counted_again(self) -> int:
        """Tokens that its last launcher's summary says were computed again."""
        found = re.search(r"([\d,]+) computed again", self.said())
        return int(found[1].replace(",", "")) if found else 0

    def told_of_launches(self) -> int | None:
        """Tokens that engines computed in all its launches, as its last summary says; None of a single launch."""
        found = re.search(r"^launches: .* ([\d,]+) tokens? computed", self.said(), re.MULTILINE)
        return int(found[1].replace(",", "")) if found else None

    def left_behind(self) -> list[str]:
        """Processes, ports, shared memory, and what is in the runtime and temporary folders and beside the output."""
        self._look()
        processes = [f"process {each.pid} {' '.join(each.info['cmdline'])}" for each in processes_of(self.runtime)]
        places = [self.runtime, *(self.folder / "tmp").iterdir(), self.folder / "out" / "c.tmp"]
        claims = (self.folder / "out").glob(".millrace/*.claim")
        paths = [str(path.relative_to(self.folder)) for path in (*places, *claims) if path.exists()]
        return processes + self._held.left() + paths


def _is_of(process: psutil.Process, word: str) -> bool:
    command = process.info["cmdline"] or []
    return word in command or (word == "prism" and any(Path(each).name.startswith("prism") for each in command[:3]))

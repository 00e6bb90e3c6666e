"""Who holds the claim of an output, as the claim says it and as a second job is told."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.job_progress import process_space


class Claimant(msgspec.Struct, frozen=True):
    """A job's process."""

    pid: Annotated[int, msgspec.Meta(lt=2**31)]
    host: str
    since: str
    token: str = ""
    """Tells two claims of one process apart."""
    space: str = ""
    """What `pid` is a process of: a boot of a machine, and a container in it; empty where it is not known."""

    @staticmethod
    def this_process() -> Claimant:
        """From now on."""
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return Claimant(os.getpid(), socket.gethostname(), now, uuid.uuid4().hex, _space())

    def is_dead(self) -> bool:
        """True if the process is known to have ended: it was one of this machine."""
        return bool(self.space) and self.space == _space() and not psutil.pid_exists(self.pid)

    def encoded(self) -> bytes:
        """As a claim holds it."""
        return msgspec.json.encode(self) + b"\n"

    @staticmethod
    def decoded(text: bytes) -> Claimant | None:
        """None while the claim is being written, or if it is not a claim."""
        try:
            return json_decoder(Claimant).decode(text)
        except msgspec.MsgspecError:
            return None

    def __str__(self) -> str:
        return f"pid {self.pid} on host {self.host}, since {self.since}"


def _space() -> str:
    space = process_space()
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} pid:[{space}]" if space else ""
    return ""


def refusal(flag: str, output: str, claimant: Claimant | None) -> str:
    """What a second job is told."""
    who = f" ({claimant})" if claimant else ""
    return f"another job writes {output}{who}: wait until it ends, or name another {flag}"

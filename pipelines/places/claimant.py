"""Who holds the claim of an output, as the claim says it and as a second job is told."""

from __future__ import annotations

import os
import socket
import uuid
from datetime import UTC, datetime

import msgspec


class Claimant(msgspec.Struct, frozen=True):
    """A job's process."""

    pid: int
    host: str
    since: str
    token: str = ""
    """Tells two claims of one process apart."""

    @staticmethod
    def this_process() -> Claimant:
        """From now on."""
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return Claimant(os.getpid(), socket.gethostname(), now, uuid.uuid4().hex)

    def encoded(self) -> bytes:
        """As a claim holds it."""
        return msgspec.json.encode(self) + b"\n"

    @staticmethod
    def decoded(text: bytes) -> Claimant | None:
        """None while the claim is being written."""
        try:
            return msgspec.json.decode(text, type=Claimant)
        except msgspec.MsgspecError:
            return None

    def __str__(self) -> str:
        return f"pid {self.pid} on host {self.host}, since {self.since}"


def refusal(flag: str, output: str, claimant: Claimant | None) -> str:
    """What a second job is told."""
    who = f" ({claimant})" if claimant else ""
    return f"another job writes {output}{who}: wait until it ends, or name another {flag}"

"""A bucket of a test's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers.fake_gcs import FakeGcs
from tests.servers.faulty_http import ALWAYS, Fault, Request


class Bucket:
    """Objects by their names; faults are injected by the server's proxy."""

    def __init__(self, server: FakeGcs, name: str, give_up_after: Callable[[float], None]) -> None:
        """`give_up_after` sets the seconds for which clients try a request."""
        server.create_bucket(name)
        self._give_up_after = give_up_after
        self.server = server
        self.name = name
        self.address = f"gs://{name}"

    def inject_for_good(self, fault: Fault, matches: Callable[[Request], bool], after: int = 0) -> None:
        """Let that happen to all requests that match but the first few; clients give up soon, as trying cannot help."""
        self._give_up_after(0.2)
        self.server.inject(fault, matches, ALWAYS, after)

    def put(self, name: str, content: bytes) -> str:
        """Store an object, past all faults; returns its address."""
        self.server.put(self.name, name, content)
        return f"{self.address}/{name}"

    def upload(self, folder: Path, prefix: str) -> str:
        """Store the files of a folder."""
        for path in folder.iterdir():
            self.put(f"{prefix}/{path.name}", path.read_bytes())
        return f"{self.address}/{prefix}"

    def names(self, prefix: str = "") -> list[str]:
        """What is there."""
        return self.server.names(self.name, prefix)

    def rows(self, prefix: str) -> list[dict[str, Any]]:
        """The rows of all objects of JSONL under a prefix."""
        return [
            json.loads(line) for name in self.names(prefix) for line in self.server.get(self.name, name).splitlines()
        ]

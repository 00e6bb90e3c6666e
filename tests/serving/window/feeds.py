"""What viewers of a server's page are sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx


@contextlib.contextmanager
def feed(url: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames of a viewer."""
    with httpx.stream("GET", f"{url}/events", headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        data = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        yield (json.loads(text) for text in data if text != "[DONE]")

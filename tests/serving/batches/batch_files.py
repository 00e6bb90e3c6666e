"""Files of batches, as tests write and read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.serving.servers import MODEL, Server
from tests.waiting import eventually

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    """A request in OpenAI's batch format."""
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **body}}


def created(server: Server, lines: Iterable[Any], endpoint: str = COMPLETIONS, key: str = "none", **more: Any) -> str:
    """The id of a batch of these lines; a text is a line as it is."""
    content = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    client = server.client(key)
    file = client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    made: Any = client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,
        completion_window="24h",
        **more,
    )
    assert made.status == "validating"
    return str(made.id)


def batch(server: Server, batch_id: str, key: str = "none") -> Any:
    """A batch as it is now."""
    return server.client(key).batches.retrieve(batch_id)


def ended(server: Server, batch_id: str, key: str = "none") -> Any:
    """A batch that has ended."""
    over = ("completed", "failed", "cancelled", "expired")
    return eventually(lambda: found if (found := batch(server, batch_id, key)).status in over else None, "it ends")


def rows_of(server: Server, file_id: str | None, key: str = "none") -> dict[str, Any]:
    """The rows of a file of a batch, by their ids; each id is there once."""
    if file_id is None:
        return {}
    text = server.client(key).files.content(file_id).text
    rows = [json.loads(each) for each in text.splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows), "an id is there twice"
    return found

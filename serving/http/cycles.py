"""Changes to uvicorn's cycle (one request on its connection): a body that is there, an answer in one write, closing a
connection whose body was not asked for, and HTTP/1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE


def answer_at_once(cycle: Any, send: Any, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Send a whole answer as uvicorn's cycle does in two messages; False where it would wait, or where `send` is not
    the cycle's own: another layer (CORS) adds its part.
    """
    waits = cycle.flow.write_paused or cycle.disconnected or cycle.response_started
    if waits or send != cycle.send or cycle.scope["method"] == "HEAD":
        return False
    head = _head(status, tuple(cycle.default_headers), tuple(headers.items()))
    if "connection" in headers:  # its only value here is "close"
        cycle.keep_alive = False
    elif not cycle.keep_alive:
        head += b"connection: close\r\n"
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue, cycle.chunked_encoding = False, False
    cycle.message_event.set()
    cycle.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


@lru_cache
def _head(status: int, default: tuple[tuple[bytes, bytes], ...], headers: tuple[tuple[str, str], ...]) -> bytes:
    """The status and the headers; most answers have the same."""
    own = (f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
    return b"".join([STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in default), *own])


def body_at_once(cycle: Any) -> bytearray | None:
    """The whole body, as uvicorn's cycle gives it in messages; None while some of it is on its way."""
    if cycle.more_body or cycle.disconnected or cycle.response_complete:
        return None
    body: bytearray
    body, cycle.body = cycle.body, bytearray()
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    return body


def close_unless_read(cycle: Any, is_ending: Callable[[], bool]) -> None:
    """Close after an answer that was given without the body, which its client may send or leave out (RFC 9110, 10.1.1).
    Reading the body is what asks the client for it. A server that ends closes in any case.
    """
    keep_alive, receive = cycle.keep_alive, cycle.receive
    cycle.keep_alive = False

    async def receive_all() -> Any:
        cycle.keep_alive, cycle.receive = keep_alive and not is_ending(), receive
        return await receive()

    cycle.receive = receive_all


def end_with_connection(cycle: Any) -> None:
    """Send an answer of unknown length as it is; HTTP/1.0 has no chunks, and the end of the connection ends it."""
    send = cycle.send
    is_delimited = True

    async def send_plain(message: dict[str, Any]) -> None:
        nonlocal is_delimited
        if message["type"] == "http.response.start":
            is_delimited = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = cycle.chunked_encoding if is_delimited else False
        elif not is_delimited:  # uvicorn counts down to 0
            cycle.expected_content_length = len(message.get("body", b"")) + bool(message.get("more_body"))
        await send(message)

    cycle.send = send_plain

"""How soon a client that hangs up has its request ended in the engine, beside a crowd of others.

    python -m benchmarks.hang_ups --results benchmarks/results/hang-ups.json

The crowd is `--clients` clients. Each holds a stream, and asks again when it ends. One more client asks and hangs up in
the middle of its answer. The time runs until the manager says that the engine has ended the request. Half of the
hang-ups are in a stream, half before a whole answer. A hang-up does not count if a stream of the crowd began meanwhile,
or if its own request ended before: `ended` is the number of requests that ended too soon, streams of the crowd that
broke included. Sides: `fake` computes nothing, 20 ms a step; `tiny` is the embedded model. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from benchmarks.server import serving
from benchmarks.sides import vllm_server
from benchmarks.timeline import percentile
from millrace.model_manager.client.status import read_status

SIDES = {"fake": ["--backend", "fake"], "tiny": ["--dtype", "float32"]}
_STEP = "0.02"
_MAX_TOKENS = 1000
_END = b"[DONE]"
_SETTLED = (0.1, 0.15)
"""Seconds that a request runs, at least and at most, before its client hangs up: at any time of a step."""
_POLL = 0.001
_LOOKS = 50
"""Looks at the manager, about 2 ms each, in which a client of the crowd asks again after its stream's end."""
_WITHIN = 60.0
"""Seconds for each wait: a server that takes longer is stuck."""
_MOST_VOID = 10
"""Hang-ups that do not count, for each that does, before the benchmark gives up."""


class Crowd:
    """Clients that hold a stream each, on one thread."""

    def __init__(self, port: int, clients: int) -> None:
        self.began = 0
        """How many streams have begun."""
        self.broken = 0
        """How many streams ended without their last event."""
        self._port = port
        self._tails: dict[socket.socket, bytes] = {}
        """The last bytes of each stream: its end may come in two pieces."""
        self._open = selectors.DefaultSelector()
        self._is_over = threading.Event()
        for _ in range(clients):
            self._ask(connected(port))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Hang up, all of them."""
        self._is_over.set()
        self._thread.join(2 * _WITHIN)
        for key in list(self._open.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _ask(self, sock: socket.socket) -> None:
        self.began += 1
        sock.sendall(request(stream=True, number=self.began))
        self._tails[sock] = b""
        self._open.register(sock, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._open.select(0.1):
                sock: Any = key.fileobj
                if (data := received(sock)) and not self._ends(sock, data):
                    continue
                self.broken += not data
                self._open.unregister(sock)
                del self._tails[sock]
                sock.close()
                self._ask(connected(self._port))

    def _ends(self, sock: socket.socket, data: bytes) -> bool:
        seen = self._tails[sock] + data
        self._tails[sock] = seen[1 - len(_END) :]
        return _END in seen


def received(sock: socket.socket) -> bytes:
    """The next bytes; none if the connection has ended or is broken."""
    try:
        return sock.recv(2**16)
    except ConnectionError:
        return b""


def connected(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", port), _WITHIN)


def request(*, stream: bool, number: int) -> bytes:
    """A completion's request; no two have a prompt in common."""
    body = {"prompt": f"{number} and more", "max_tokens": _MAX_TOKENS, "ignore_eos": True, "stream": stream}
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + content


def hung_up(port: int, runtime: Path, crowd: Crowd, clients: int, number: int, *, stream: bool) -> float | None:
    """Seconds from the hang-up of one more client to the end of its request; None if a stream of the crowd began
    meanwhile. Raises EndedTooSoon if the request had ended before the hang-up.
    """
    _wait_until(lambda: _outstanding(runtime) == clients, f"{clients} outstanding requests")
    began = crowd.began
    with connected(port) as sock:
        sock.sendall(request(stream=stream, number=-number))
        _wait_until(lambda: _outstanding(runtime) == clients + 1 or crowd.began != began, "the request")
        if stream and not received(sock):
            raise EndedTooSoon
        time.sleep(random.Random(number).uniform(*_SETTLED))
        if _outstanding(runtime) <= clients or _has_ended(sock):
            # One of the crowd's streams has ended, or this request. Only a client of the crowd asks again.
            _wait_until(_stays(lambda: crowd.began != began or _outstanding(runtime) == clients), "a steady crowd")
            if crowd.began == began:
                raise EndedTooSoon
    since = time.perf_counter()
    _wait_until(lambda: _outstanding(runtime) <= clients, "the end of the request")
    seconds = time.perf_counter() - since
    _wait_until(_stays(lambda: _outstanding(runtime) == clients), "a steady crowd")
    return seconds if crowd.began == began else None


class EndedTooSoon(Exception):
    """A request ended before its client hung up."""


def _has_ended(sock: socket.socket) -> bool:
    """Whether the other side has sent the end of the answer, or has closed the connection."""
    sock.setblocking(False)
    seen = b""
    try:
        while data := received(sock):
            seen += data
    except BlockingIOError:
        return _END in seen
    return True


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _WITHIN
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"no sign of {what} within {_WITHIN:g} s")
        time.sleep(_POLL)


def _stays(holds: Callable[[], bool]) -> Callable[[], bool]:
    """Whether it has held at each of the last _LOOKS looks."""
    looks = 0

    def has_stayed() -> bool:
        nonlocal looks
        looks = looks + 1 if holds() else 0
        return looks >= _LOOKS

    return has_stayed


def _outstanding(runtime: Path) -> int:
    """Requests of the model that no engine has ended."""
    status = read_status(runtime)
    return sum(model.outstanding for model in status.models) if status else 0


@contextmanager
def _served(side: str) -> Iterator[tuple[int, Path]]:
    """Port and runtime folder of a server that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    os.environ["MILLRACE_FAKE_STEP_SECONDS"] = _STEP
    command = [sys.executable, "-m", "millrace", "serve", "--port", str(port), "--log_level", "warning", *SIDES[side]]
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder, ExitStack() as stack:
        runtime = Path(folder) / "run"
        process = stack.enter_context(serving([*command, "--files_dir", f"{folder}/files"], runtime))
        vllm_server.wait_until_ready(f"http://127.0.0.1:{port}/ready", process)
        yield port, runtime


def measured(side: str, clients: int, count: int) -> tuple[dict[str, Any], int]:
    """Percentiles of the hang-ups of each kind, in milliseconds, and how many requests ended too soon."""
    with _served(side) as (port, runtime):
        crowd, ended = Crowd(port, clients), 0
        try:
            found = {}
            for kind in ("stream", "whole"):
                seconds, too_soon = hang_ups(
                    partial(hung_up, port, runtime, crowd, clients, stream=kind == "stream"), count // 2
                )
                found[kind], ended = _percentiles(seconds), ended + too_soon
            return found, ended + crowd.broken
        finally:
            crowd.close()


def hang_ups(hang_up: Callable[[int], float | None], count: int) -> tuple[list[float], int]:
    """Seconds of `count` hang-ups that count, and how many requests ended too soon. Raises SystemExit if hardly any
    hang-up counts.
    """
    seconds: list[float] = []
    ended = 0
    for number in range(1, 1 + count * (1 + _MOST_VOID)):
        try:
            found = hang_up(number)
        except EndedTooSoon:
            ended += 1
        else:
            seconds += [found] if found is not None else []
        if len(seconds) == count:
            return seconds, ended
    raise SystemExit(f"{len(seconds)} of {number} hang-ups count; {ended} requests ended before their hang-up")


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(1000 * percentile(seconds, share), 1) for share in (50, 95)} | {
        "max": round(1000 * max(seconds), 1)
    }


def main() -> None:
    """Measure each side; the last line is JSON."""
    arguments = _arguments()
    found, ended = {}, {}
    for side in arguments.sides:
        found[side], ended[side] = measured(side, arguments.clients, arguments.count)
        print(f"{side}: {found[side]}, {ended[side]} requests ended too soon", flush=True)
    figures = {"crowd": arguments.clients, "hang_ups": arguments.count, "milliseconds": found, "ended": ended}
    conclude(figures, arguments.results)


def _arguments() -> argparse.Namespace:
    parser = command_line("hang_ups", __doc__)
    parser.add_argument("--sides", default="fake,tiny", help=f"Sides to measure, of {', '.join(SIDES)}.")
    parser.add_argument("--clients", type=int, default=40, help="Clients in the crowd, a stream each.")
    parser.add_argument("--count", type=int, default=50, help="Hang-ups that count, for each side: half of each kind.")
    parser.add_argument("--results", type=Path, default=None, help="File that keeps the last line.")
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    if unknown := set(arguments.sides) - set(SIDES):
        parser.error(f"--sides: no {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


if __name__ == "__main__":
    main()

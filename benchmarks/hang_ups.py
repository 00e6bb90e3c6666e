"""How soon a client that hangs up has its request ended in the engine, beside a crowd of others.

    python -m benchmarks.hang_ups --results benchmarks/results/hang-ups.json

`--clients` others hold a stream each, and ask again when it ends. One more client asks, hangs up in the middle of its
answer, and the manager is asked until it says that the engine has ended the request. Half of the `--count` hang-ups
are in a stream, half in an answer as a whole. One beside which another stream began or ended counts as none. Sides:
`fake` computes nothing, 20 ms a step; `tiny` is the embedded model. The last line is JSON.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


class Crowd:
    """Clients that hold a stream each, on one thread."""

    def __init__(self, port: int, clients: int) -> None:
        self.began = 0
        """How many streams have begun."""
        self._port = port
        self._open = selectors.DefaultSelector()
        self._is_over = threading.Event()
        for _ in range(clients):
            self._ask(connected(port))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Hang up, all of them."""
        self._is_over.set()
        self._thread.join()
        for key in list(self._open.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _ask(self, sock: socket.socket) -> None:
        self.began += 1
        sock.sendall(request(stream=True, number=self.began))
        self._open.register(sock, selectors.EVENT_READ)

    def _run(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._open.select(0.1):
                sock: Any = key.fileobj
                data = sock.recv(2**16)
                if not data or _END in data:
                    self._open.unregister(sock)
                    sock.close()
                    self._ask(connected(self._port))


def connected(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", port), 60)


def request(*, stream: bool, number: int) -> bytes:
    """A completion's request; no two have a prompt in common."""
    body = {"prompt": f"{number} and more", "max_tokens": _MAX_TOKENS, "ignore_eos": True, "stream": stream}
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + content


def hung_up(port: int, runtime: Path, crowd: Crowd, clients: int, number: int, *, stream: bool) -> float | None:
    """Seconds from the hang-up of one more client to the end of its request; None if a stream of the crowd began
    meanwhile.
    """
    while _outstanding(runtime) != clients:
        time.sleep(_POLL)
    began = crowd.began
    with connected(port) as sock:
        sock.sendall(request(stream=stream, number=-number))
        while _outstanding(runtime) != clients + 1:
            time.sleep(_POLL)
        if stream:
            sock.recv(2**16)
        time.sleep(random.Random(number).uniform(*_SETTLED))
    since = time.perf_counter()
    while _outstanding(runtime) > clients:
        time.sleep(_POLL)
    return time.perf_counter() - since if crowd.began == began else None


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


def measured(side: str, clients: int, count: int) -> dict[str, Any]:
    """Percentiles of the hang-ups of each kind, in milliseconds."""
    with _served(side) as (port, runtime):
        crowd = Crowd(port, clients)
        try:
            return {
                kind: _percentiles(list(_hang_ups(port, runtime, crowd, clients, count // 2, stream=kind == "stream")))
                for kind in ("stream", "whole")
            }
        finally:
            crowd.close()


def _hang_ups(port: int, runtime: Path, crowd: Crowd, clients: int, count: int, *, stream: bool) -> Iterator[float]:
    number = 0
    while count:
        number += 1
        if (seconds := hung_up(port, runtime, crowd, clients, number, stream=stream)) is not None:
            count -= 1
            yield seconds


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(1000 * percentile(seconds, share), 1) for share in (50, 95)} | {
        "max": round(1000 * max(seconds), 1)
    }


def main() -> None:
    """Measure each side; the last line is JSON."""
    arguments = _arguments()
    found = {}
    for side in arguments.sides:
        found[side] = measured(side, arguments.clients, arguments.count)
        print(f"{side}: {found[side]}", flush=True)
    conclude({"crowd": arguments.clients, "hang_ups": arguments.count, "milliseconds": found}, arguments.results)


def _arguments() -> argparse.Namespace:
    parser = command_line("hang_ups", __doc__)
    parser.add_argument("--sides", default="fake,tiny", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--clients", type=int, default=40, help="that hold a stream each")
    parser.add_argument("--count", type=int, default=50, help="hang-ups of each side")
    parser.add_argument("--results", type=Path, default=None, help="file to keep the last line in")
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    if unknown := set(arguments.sides) - set(SIDES):
        parser.error(f"--sides: no {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


if __name__ == "__main__":
    main()

"""Cost of the HTTP layer: the server on one core, `wrk` (a client in C) and an engine without a model on the others.

    apt-get install wrk
    python -m benchmarks.http_cost --connections 40 --rounds 3

Rounds of whole answers and of streams take turns. Requests a second are bounded by the slowest of server, engine and
client; what counts is the processor time of the server's own process, for a request and for a streamed token, and the
requests a second that a core at that price answers. In the end so many streams stay open without a token, for the
memory of each. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command_line import command_line
from benchmarks.results import conclude
from benchmarks.server import SIDES, serving
from benchmarks.sides import vllm_server
from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.config import EMBEDDED_MODEL

_TEXT = "The quick brown fox jumps over the lazy dog"
_COUNT = re.compile(r"(\d+) requests in")
_WRONG = re.compile(r"Non-2xx.*")


def main() -> None:
    """Serve, ask in rounds, and hold idle streams; the last line is JSON."""
    arguments = _arguments()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    port = _free_port()
    found: dict[str, list[float]] = {"whole": [], "streamed": []}
    with serving(SIDES["millrace-fake"](Path(EMBEDDED_MODEL), port, "float32")) as process:
        vllm_server.wait_until_ready(f"http://127.0.0.1:{port}/ready", process)
        _pin(process.pid, arguments.core)
        for _ in range(arguments.rounds):
            for name, tokens in (("whole", arguments.max_tokens), ("streamed", arguments.stream_tokens)):
                found[name].append(_round(port, process.pid, arguments, tokens, is_stream=name == "streamed"))
                print(f"{name}: {1000 * found[name][-1]:.3f} ms of processor a request", flush=True)
        kb = _idle_streams(port, process.pid, arguments.idle)
    figures = _figures(arguments, found) | {"idle_streams": arguments.idle, "kb_an_idle_stream": round(kb)}
    conclude(figures, arguments.results)


def _figures(arguments: argparse.Namespace, found: dict[str, list[float]]) -> dict[str, Any]:
    whole, streamed = (statistics.median(found[name]) for name in ("whole", "streamed"))
    return {
        "connections": arguments.connections,
        "max_tokens": arguments.max_tokens,
        "stream_tokens": arguments.stream_tokens,
        "rounds_cpu_s": {name: [round(each, 6) for each in rounds] for name, rounds in found.items()},
        "cpu_ms_a_request": round(1000 * whole, 3),
        "requests_a_core_s": round(1 / whole),
        "cpu_us_a_streamed_token": round(1e6 * streamed / arguments.stream_tokens, 1),
        "streamed_tokens_a_core_s": round(arguments.stream_tokens / streamed),
    }


def _round(port: int, pid: int, arguments: argparse.Namespace, tokens: int, *, is_stream: bool) -> float:
    """Seconds that the server computed for a request."""
    body = {"model": EMBEDDED_MODEL, "prompt": _TEXT, "max_tokens": tokens, "ignore_eos": True, "stream": is_stream}
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        kind = 'wrk.headers["content-type"] = "application/json"'
        script.write(f"wrk.method = 'POST'\n{kind}\nwrk.body = [[{json.dumps(body)}]]\n")
        script.flush()
        load = ["wrk", "-t1", f"-c{arguments.connections}", f"-d{arguments.seconds}s", "-s", script.name]
        before = _computed(pid)
        said = subprocess.check_output([*load, f"http://127.0.0.1:{port}/v1/completions"], text=True)
        seconds = _computed(pid) - before
    if wrong := _WRONG.search(said):
        raise SystemExit(wrong[0])
    count = _COUNT.search(said)
    assert count is not None, said
    return seconds / int(count[1])


def _idle_streams(port: int, pid: int, count: int) -> float:
    """Memory of the server, in KB for each, while so many streams wait for an engine that is stopped."""
    body = json.dumps({"prompt": _TEXT, "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    status = read_status(Path(psutil.Process(pid).environ()["MILLRACE_RUNTIME_DIR"]))
    engines = [psutil.Process(each) for model in (status.models if status else ()) for each in model.pids]
    before = _resident(pid)
    with ExitStack() as stack:
        for each in engines:
            each.suspend()
            stack.callback(each.resume)
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            sock.sendall(head + body)
        while len(psutil.Process(pid).net_connections()) < count:
            time.sleep(0.1)
        time.sleep(2)  # the last bodies are read
        return (_resident(pid) - before) / count / 1024


def _pin(pid: int, core: int) -> None:
    """All threads of the server on one core; the children that it has started stay where they are."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def _computed(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def _resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _arguments() -> argparse.Namespace:
    parser = command_line("http_cost", __doc__)
    parser.add_argument("--connections", type=int, default=40, help="that ask at the same time")
    parser.add_argument("--max_tokens", type=int, default=10, help="of a whole answer")
    parser.add_argument("--stream_tokens", type=int, default=100, help="of a streamed answer")
    parser.add_argument("--seconds", type=int, default=5, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--idle", type=int, default=2000, help="streams that wait, for the memory of each")
    parser.add_argument("--core", type=int, default=0, help="that the server runs on")
    parser.add_argument("--results", type=Path, help="file to keep the last line in")
    return parser.parse_args()


if __name__ == "__main__":
    main()

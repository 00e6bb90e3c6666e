"""Requests a second of `millrace serve` under a crowd of clients, against what people serve models with today.

    python -m benchmarks.server --clients 40 --max_tokens 10 --rounds 3 --results benchmarks/results/server.json
    python -m benchmarks.server --sides millrace-fake --clients 64     # what HTTP and the manager cost: no model

Each server runs the model's random weights in one shape, and stays up; rounds of `--seconds` take turns. A client asks
again when its request is answered. FastAPI's route is a plain function, which FastAPI runs in threads. All sides get
the same prompts, of `--prompt_tokens` tokens; no prefix is cached. The last line is JSON.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line
from benchmarks.conversions import ENGINE_OPENVINO_IR
from benchmarks.environments import FASTAPI, FASTAPI_OPENVINO, InstalledEngine, cache_folder
from benchmarks.http_load import Load, ask, prompts_of
from benchmarks.results import conclude
from benchmarks.sides import vllm_server
from benchmarks.texts import words_of
from benchmarks.timeline import percentile
from benchmarks.workload import SHAPES, write_checkpoints

Command = Callable[[Path, int, str], list[str]]
"""A checkpoint's folder, a port and a dtype → the command that serves it."""


def _millrace(*flags: str) -> Command:
    def command(folder: Path, port: int, dtype: str) -> list[str]:
        model = ["--model", str(folder), "--dtype", dtype, "--no-prefix_caching"]
        address = ["--port", str(port), "--log_level", "warning"]
        return [sys.executable, "-m", "millrace", "serve", *model, *address, *flags]

    return command


def _fastapi(engine: str) -> Command:
    def command(folder: Path, port: int, dtype: str) -> list[str]:
        converted = ENGINE_OPENVINO_IR.convert(folder, dtype) if engine == "openvino" else folder
        python = (FASTAPI_OPENVINO if engine == "openvino" else FASTAPI).python()
        return [str(python), "-m", "benchmarks.sides.fastapi_app", engine, str(converted), str(port), dtype]

    return command


def _vllm(folder: Path, port: int, dtype: str) -> list[str]:
    return vllm_server.command(InstalledEngine("vllm").python(), folder, port, dtype)


SIDES: dict[str, Command] = {
    "millrace": _millrace(),
    "millrace-fake": _millrace("--backend", "fake"),
    "millrace-openvino": _millrace("--backend", "openvino"),
    "fastapi-generate": _fastapi("generate"),
    "fastapi-openvino": _fastapi("openvino"),
    "vllm": _vllm,
}


@contextmanager
def serving(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process; it ends, with all that it started, at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as runtime:
        ours = vllm_server.environment() | {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "MILLRACE_RUNTIME_DIR": f"{runtime}/run",
        }
        process = subprocess.Popen(command, env=os.environ | ours, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Start the sides, let their rounds take turns; the last line is JSON."""
    arguments = _arguments()
    write_checkpoints(arguments.checkpoints, (arguments.shape,))
    folder = arguments.checkpoints / arguments.shape
    prompts = prompts_of(words_of(folder), arguments.prompt_tokens)
    loads: dict[str, list[Load]] = {side: [] for side in arguments.sides}
    with ExitStack() as stack:
        urls = {side: _started(stack, side, folder, arguments.dtype) for side in arguments.sides}

        def round_of(side: str, seconds: float) -> Load:
            limits = {"clients": arguments.clients, "max_tokens": arguments.max_tokens, "stream": arguments.stream}
            return ask(urls[side], str(folder), prompts, seconds=seconds, **limits)

        for side in arguments.sides:
            round_of(side, 0.5)  # what is compiled at first use
        for number in range(arguments.rounds):
            for side in arguments.sides:
                loads[side].append(load := round_of(side, arguments.seconds))
                print(f"round {number + 1}, {side}: {load.requests_per_s:.1f} requests/s", flush=True)
    conclude(_figures(arguments, loads), arguments.results)


def _started(stack: ExitStack, side: str, folder: Path, dtype: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.perf_counter()
    process = stack.enter_context(serving(SIDES[side](folder, port, dtype)))
    url = f"http://127.0.0.1:{port}"
    health = "ready" if side.startswith("millrace") else "health"
    vllm_server.wait_until_ready(f"{url}/{health}", process)
    print(f"{side} is ready after {time.perf_counter() - began:.1f} s", flush=True)
    return url


def _figures(arguments: argparse.Namespace, loads: dict[str, list[Load]]) -> dict[str, Any]:
    named = ("shape", "dtype", "clients", "max_tokens", "prompt_tokens", "stream", "seconds", "rounds")
    found = {side: _summary(rounds) for side, rounds in loads.items()}
    ours = found.get("millrace", {}).get("requests_per_s")
    ratios = {
        f"millrace_over_{side}": round(ours / figures["requests_per_s"], 2)
        for side, figures in found.items()
        if ours and side != "millrace"
    }
    return {name: getattr(arguments, name) for name in named} | {"sides": found} | ratios


def _summary(rounds: list[Load]) -> dict[str, Any]:
    """Medians of the rounds; percentiles of all requests, in seconds."""
    waits = [wait for load in rounds for wait in load.waits]
    first = [wait for load in rounds for wait in load.first_tokens]
    figures = {
        "requests_per_s": round(statistics.median(load.requests_per_s for load in rounds), 1),
        "tokens_per_s": round(statistics.median(load.tokens / load.seconds for load in rounds), 1),
        "rounds": [round(load.requests_per_s, 1) for load in rounds],
        "latency_s": {f"p{share}": round(percentile(waits, share), 4) for share in (50, 95, 99)},
    }
    if first:
        figures["first_token_s"] = {f"p{share}": round(percentile(first, share), 4) for share in (50, 95, 99)}
    return figures


def _arguments() -> argparse.Namespace:
    parser = command_line("server", __doc__)
    parser.add_argument(
        "--sides", default="millrace,fastapi-generate,fastapi-openvino,vllm", help=f"of {', '.join(SIDES)}"
    )
    parser.add_argument("--shape", choices=SHAPES, default="opt-125m", help="random weights in the shape of this model")
    parser.add_argument("--dtype", default="bfloat16", help="of weights and activations")
    parser.add_argument("--clients", type=int, default=40, help="that ask at the same time")
    parser.add_argument("--max_tokens", type=int, default=10, help="of an answer")
    parser.add_argument("--prompt_tokens", type=int, default=16, help="of a prompt")
    parser.add_argument("--stream", action=argparse.BooleanOptionalAction, default=False, help="ask for streams")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each side")
    parser.add_argument("--results", type=Path, default=None, help="file to keep the last line in")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of made checkpoints"
    )
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    if unknown := set(arguments.sides) - set(SIDES):
        parser.error(f"--sides: no {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


if __name__ == "__main__":
    main()

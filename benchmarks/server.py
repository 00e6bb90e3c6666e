"""Requests a second of `millrace serve` under a crowd of clients, against what people serve models with today.

    python -m benchmarks.server --clients 40 --max_tokens 10 --rounds 3 --results benchmarks/results/server.json
    python -m benchmarks.server --sides millrace-fake --clients 64     # what HTTP and the manager cost: no model

Each server runs the model's random weights in one shape, and stays up; rounds of `--seconds` take turns. A client asks
again when its request is answered. FastAPI's route is a plain function, which FastAPI runs in threads. All sides get
the same prompts, of `--prompt_tokens` tokens; no prefix is cached. Then requests come at random, at the shares of its
own saturation that `--loads` names: how long an answer takes, and of a streamed one the first token and each later one.
The last line is JSON.
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
from benchmarks.conversions import ENGINE_OPENVINO_IR, GGUF
from benchmarks.environments import FASTAPI, FASTAPI_OPENVINO, InstalledEngine, cache_folder
from benchmarks.http_load import Load, arrive, ask, prompts_of
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


def _llama_cpp(folder: Path, port: int, dtype: str) -> list[str]:
    python = InstalledEngine("llama_cpp").python()
    return [str(python), "-m", "benchmarks.sides.llama_server", str(GGUF.convert(folder, dtype)), str(port)]


SIDES: dict[str, Command] = {
    "millrace": _millrace(),
    "millrace-fake": _millrace("--backend", "fake"),
    "millrace-openvino": _millrace("--backend", "openvino"),
    "fastapi-generate": _fastapi("generate"),
    "fastapi-openvino": _fastapi("openvino"),
    "vllm": _vllm,
    "llama-server": _llama_cpp,
}
"""llama.cpp has no model of OPT's architecture."""


@contextmanager
def serving(command: list[str], runtime: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process; it ends, with all that it started, at the end of the block. `runtime`: its folder."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        ours = vllm_server.environment() | {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "MILLRACE_RUNTIME_DIR": str(runtime or f"{folder}/run"),
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


class _Side:
    """One server that is up, and what its clients saw of it."""

    def __init__(self, name: str, url: str, pid: int, model: str) -> None:
        self.name = name
        self._url = url
        self._pid = pid
        self._model = model
        self._loads: list[Load] = []
        self._busy: list[float] = []
        """Seconds that the server's own process computed for a request, in each round."""
        self._at_random: dict[str, Any] = {}

    def crowd(self, prompts: Iterator[str], arguments: argparse.Namespace, seconds: float) -> Load:
        """A round of clients that each ask when they are answered; not counted."""
        limits = {"clients": arguments.clients, "max_tokens": arguments.max_tokens, "stream": arguments.stream}
        return ask(self._url, self._model, prompts, seconds=seconds, **limits)

    def count_crowd(self, prompts: Iterator[str], arguments: argparse.Namespace) -> float:
        """Run and count one round of a crowd; returns its requests per second."""
        before = self._processor_seconds()
        self._loads.append(load := self.crowd(prompts, arguments, arguments.seconds))
        self._busy.append((self._processor_seconds() - before) / len(load.waits))
        return load.requests_per_s

    def count_arrivals(self, prompts: Iterator[str], arguments: argparse.Namespace, share: float) -> dict[str, Any]:
        """Requests at random, at this share of what the rounds saw: percentiles of their waits, in seconds."""
        limits = {"rate": share * self._saturation, "seconds": 2 * arguments.seconds, "seed": len(self._at_random)}
        stream = not self.name.startswith("fastapi")  # which answers as a whole
        load = arrive(self._url, self._model, prompts, max_tokens=arguments.max_tokens, stream=stream, **limits)
        waits = {"latency_s": _percentiles(load.waits)}
        if stream:
            waits |= {
                "first_token_s": _percentiles(load.first_tokens),
                "later_token_s": _percentiles(load.later_tokens),
            }
        self._at_random[f"{share:.0%}"] = waits
        return waits

    @property
    def _saturation(self) -> float:
        """Median requests a second."""
        return statistics.median(load.requests_per_s for load in self._loads)

    def figures(self) -> dict[str, Any]:
        """Medians of the rounds; percentiles of all requests, in seconds."""
        figures = {
            "requests_per_s": round(self._saturation, 1),
            "tokens_per_s": round(statistics.median(load.tokens / load.seconds for load in self._loads), 1),
            "rounds": [round(load.requests_per_s, 1) for load in self._loads],
            "retries": sum(load.retries for load in self._loads),
            "server_cpu_ms_a_request": round(1000 * statistics.median(self._busy), 3),
            "latency_s": _percentiles([wait for load in self._loads for wait in load.waits]),
        }
        first = [wait for load in self._loads for wait in load.first_tokens]
        figures |= {"first_token_s": _percentiles(first)} if first else {}
        return figures | ({"at_random": self._at_random} if self._at_random else {})

    def _processor_seconds(self) -> float:
        """Seconds that the server's own process has computed; an engine in another process is not in them."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Start the sides, let their rounds take turns; the last line is JSON."""
    arguments = _arguments()
    write_checkpoints(arguments.checkpoints, (arguments.shape,))
    folder = arguments.checkpoints / arguments.shape
    prompts = prompts_of(words_of(folder), arguments.prompt_tokens)
    with ExitStack() as stack:
        sides = [_started(stack, side, folder, arguments.dtype) for side in arguments.sides]
        for side in sides:
            side.crowd(prompts, arguments, 0.5)  # what is compiled at first use
        for number in range(arguments.rounds):
            for side in sides:
                rate = side.count_crowd(prompts, arguments)
                print(f"round {number + 1}, {side.name}: {rate:.1f} requests/s", flush=True)
        for share in arguments.loads:
            for side in sides:
                waits = side.count_arrivals(prompts, arguments, share)
                print(f"{share:.0%} of saturation, {side.name}: {waits}", flush=True)
        conclude(_figures(arguments, {side.name: side.figures() for side in sides}), arguments.results)


def _started(stack: ExitStack, name: str, folder: Path, dtype: str) -> _Side:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.perf_counter()
    process = stack.enter_context(serving(SIDES[name](folder, port, dtype)))
    url = f"http://127.0.0.1:{port}"
    health = "ready" if name.startswith("millrace") else "health"
    vllm_server.wait_until_ready(f"{url}/{health}", process)
    print(f"{name} is ready after {time.perf_counter() - began:.1f} s", flush=True)
    return _Side(name, url, process.pid, str(folder))


def _figures(arguments: argparse.Namespace, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    named = ("shape", "dtype", "clients", "max_tokens", "prompt_tokens", "stream", "seconds", "rounds")
    ours = found.get("millrace", {}).get("requests_per_s")
    ratios = {
        f"millrace_over_{side}": round(ours / figures["requests_per_s"], 2)
        for side, figures in found.items()
        if ours and side != "millrace"
    }
    return {name: getattr(arguments, name) for name in named} | {"sides": found} | ratios


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(percentile(seconds, share), 4) for share in (50, 95, 99)}


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
    parser.add_argument("--loads", default="", help="shares of saturation, as 0.25,0.5,0.75,0.95")
    parser.add_argument("--results", type=Path, default=None, help="file to keep the last line in")
    parser.add_argument(
        "--checkpoints", type=Path, default=cache_folder() / "checkpoints", help="folder of made checkpoints"
    )
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    arguments.loads = [float(share) for share in arguments.loads.split(",") if share]
    if unknown := set(arguments.sides) - set(SIDES):
        parser.error(f"--sides: no {', '.join(sorted(unknown))}; there are {', '.join(SIDES)}")
    return arguments


if __name__ == "__main__":
    main()

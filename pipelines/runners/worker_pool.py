"""`millrace worker-pool`: starts worker processes when a runner asks for them, as the EXTERNAL environment does.

A pool stands beside each task manager of a cluster, at an address that this one alone asks: runners number their
workers each from 1. Beam's own pool (`worker_pool_main`) listens on all addresses of the machine, needs the right
`python` first on PATH, and has its workers write to a pipe that nobody reads; this one does not. Knows no pipeline.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from millrace.model_manager.wire.errors import ConfigError

from ..edge import at_the_edge, leave
from ..flags.parser import FlagParser

DEFAULT_ADDRESS = "localhost:50000"
_END_WITHIN = 10.0
"""Seconds that a worker has after SIGTERM."""
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit status."""
    parser = FlagParser(prog="millrace worker-pool", description="Start worker processes when a Beam runner asks.")
    parser.add_argument(
        "--address",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"Address to listen on. Default: {DEFAULT_ADDRESS}.",
    )
    return at_the_edge(lambda: _serve(parser.parse_args(arguments).address))


def _serve(address: str) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with serving(address, WorkerProcesses()):
        _log.info("workers are started at %s", address)
        over.wait()
    return 0


@contextmanager
def serving(address: str, workers: WorkerProcesses) -> Iterator[None]:
    """A pool of workers at an address. At the end, workers that still run are ended."""
    server = grpc.server(ThreadPoolExecutor(4, "millrace-worker-pool"), options=[("grpc.so_reuseport", 0)])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(_Servicer(workers), server)
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise ConfigError(f"--address {address}: takes a host and a port of this machine that is free") from None
    server.start()
    try:
        yield
    finally:
        server.stop(None)
        workers.stop_all()


class WorkerProcesses:
    """The processes, by the ids that the runner gave them."""

    def __init__(
        self, command: Sequence[str] = (sys.executable, "-P", "-m", "millrace.pipelines.runners.sdk_worker")
    ) -> None:
        """`command` starts a worker, with the arguments of the container contract (another one for tests)."""
        self._command = command
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_over = False

    def start(self, worker_id: str, endpoints: dict[str, str]) -> None:
        """Start a worker. A worker with the same id belongs to a runner that was killed, and is ended first.

        Raises OSError if it cannot be started, as after `stop_all`.
        """
        arguments = [f"--id={worker_id}", *(f"--{name}_endpoint={url}" for name, url in endpoints.items())]
        while not self._start(worker_id, arguments):
            self.stop(worker_id)

    def _start(self, worker_id: str, arguments: list[str]) -> bool:
        """False if a worker of the id runs."""
        with self._lock:
            if self._is_over:
                raise OSError("the pool is stopped")
            if worker_id in self._running:
                return False
            process = subprocess.Popen([*self._command, *arguments], stdin=subprocess.DEVNULL)
            self._running[worker_id] = process
        _log.info("worker %s is process %d", worker_id, process.pid)  # it may be stopped already
        return True

    def stop(self, worker_id: str) -> None:
        """End a worker. An unknown id means that the worker has ended."""
        with self._lock:
            process = self._running.pop(worker_id, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pids(self) -> list[int]:
        """The pids of the workers that were started and not ended."""
        with self._lock:
            return [process.pid for process in self._running.values()]

    def stop_all(self) -> None:
        """End all, and start no more: a call of the runner may still be on its way."""
        with self._lock:
            self._is_over = True
            worker_ids = list(self._running)
        for worker_id in worker_ids:
            self.stop(worker_id)


class _Servicer(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    def __init__(self, workers: WorkerProcesses) -> None:
        self._workers = workers

    def StartWorker(self, request: Any, _context: Any) -> Any:  # noqa: N802 (gRPC names it)
        names = ("logging", "artifact", "provision", "control")
        endpoints = {name: getattr(request, f"{name}_endpoint").url for name in names}
        try:
            self._workers.start(request.worker_id, endpoints)
        except OSError as error:
            return beam_fn_api_pb2.StartWorkerResponse(error=f"a worker cannot be started: {error}")
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, _context: Any) -> Any:  # noqa: N802 (gRPC names it)
        self._workers.stop(request.worker_id)
        return beam_fn_api_pb2.StopWorkerResponse()


if __name__ == "__main__":
    leave(main())

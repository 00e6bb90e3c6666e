"""The worker processes of Beam's local runner, watched: when one dies, the job is told, and the others end.

A worker is `millrace-worker` (sdk_worker.py), which ends with this process, however that ends. Knows no pipeline.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import grpc
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import data_plane

from millrace.model_manager.wire.die_with_parent import with_this_process
from millrace.model_manager.wire.errors import WorkerLost, signal_name

from .beam_import import left_out

_COMMAND = (sys.executable, "-m", "millrace.pipelines.runners.sdk_worker")
_END_WITHIN = 10.0
"""Seconds that a worker has to release its resources."""


class WatchedWorkers(worker_handlers.WorkerHandlerManager):  # type: ignore[misc, unused-ignore]
    """Beam's workers; the ones that are processes are watched."""

    _grpc_server: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost: WorkerLost | None = None
        """The first worker that died before its time."""
        self._lock = threading.Lock()
        self._is_over = False

    def get_worker_handlers(self, environment_id: str | None, num_workers: int) -> Any:
        environment_id = environment_id or next(iter(self._environments))
        environment = self._environments[environment_id]
        if environment.urn == python_urns.SUBPROCESS_SDK:
            handlers = self._cached_handlers[environment_id]
            provision = self._job_provision_info.for_environment(environment)
            for number in range(len(handlers) + 1, num_workers + 1):
                name = f"worker {number} of {num_workers}"
                worker = _Worker(self.state_servicer, provision, self._grpc_server, name, self._ended)
                handlers.append(worker)
                self._workers_by_id[worker.worker_id] = worker
                worker.start_worker()
        return super().get_worker_handlers(environment_id, num_workers)

    def close_all(self) -> None:
        """End the workers: after a failure at once, since what they still do is for nobody."""
        with self._lock:
            self._is_over = True
        if sys.exc_info()[0] is not None:  # Beam calls this as its last, whatever happened
            self._give_up("the job has ended")
        super().close_all()

    def _ended(self, how: WorkerLost) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over, self.lost = True, how
        self._give_up(str(how))

    def _give_up(self, why: str) -> None:
        for worker in list(self._workers_by_id.values()):
            if isinstance(worker, _Worker):
                worker.control_conn.give_up(why)
                worker.data_conn.give_up()
                worker.kill()


class WorkerConnection(worker_handlers.ControlConnection):  # type: ignore[misc, unused-ignore]
    """Beam's connection to a worker; one that is given up answers every request by an error, instead of never."""

    def __init__(self) -> None:
        super().__init__()
        self._why = ""

    def push(self, req: Any) -> Any:
        future = super().push(req)
        if self._why and future is not None:
            self._fail(req.instruction_id)
        return future

    def give_up(self, why: str) -> None:
        """The worker will not answer any more."""
        self._why = why
        for instruction in list(self._futures_by_id):
            self._fail(instruction)

    def _fail(self, instruction: str) -> None:
        if (future := self._futures_by_id.pop(instruction, None)) is not None:
            future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=instruction, error=self._why))

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # the worker is gone; who watches it tells
            for data in self._input:
                if (future := self._futures_by_id.pop(data.instruction_id, None)) is not None:
                    future.set(data)


class DataConnection(data_plane._GrpcDataChannel):  # type: ignore[misc, unused-ignore]
    """Beam's connection for elements; one that is given up takes what is sent, where it would block the sender, and
    fails at once who waits for elements: Beam looks for the worker's end once a second.
    """

    def give_up(self) -> None:
        """The worker will take and give nothing any more."""
        for received in list(self._received.values()):
            with contextlib.suppress(queue.Full):  # then nobody waits
                received.put(None, 0, block=False)  # no element: Beam raises ValueError
        threading.Thread(target=self._drop, name="millrace-drop", daemon=True).start()

    def _drop(self) -> None:
        while self._to_send.get() is not self._WRITES_FINISHED:
            pass

    def close(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # as in _read_inputs, which keeps it
            super().close()

    def _read_inputs(self, elements: Any) -> None:
        with contextlib.suppress(grpc.RpcError):  # the worker is gone; who watches it tells
            super()._read_inputs(elements)


class _Worker(worker_handlers.GrpcWorkerHandler):  # type: ignore[misc, unused-ignore]
    """A worker process, and the thread that starts it and waits for its end."""

    def __init__(self, state: Any, provision: Any, server: Any, name: str, ended: Callable[[WorkerLost], None]) -> None:
        """`ended`: is told how the process ended."""
        super().__init__(state, provision, server)
        self._name = name
        self._ended = ended
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, name=f"millrace-{self.worker_id}", daemon=True)

    def start_worker(self) -> None:
        self._thread.start()

    def stop_worker(self) -> None:
        self._thread.join(_END_WITHIN)
        self.kill()
        self._thread.join()

    def kill(self) -> None:
        """End the process at once, also before it was started."""
        with self._lock:
            self._is_killed = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _run(self) -> None:
        try:
            process = self._start()
        except OSError as error:
            self._ended(_lost(f"{self._name} cannot be started: {error}"))
            return
        if process is not None:
            self._ended(_of_status(f"{self._name} (process {process.pid})", process.wait()))

    def _start(self) -> subprocess.Popen[bytes] | None:
        """None where it was killed before."""
        command = [*_COMMAND, f"--id={self.worker_id}", f"--provision_endpoint={self.control_address}"]
        command.append(f"--without={' '.join(left_out())}")
        with self._lock:
            if not self._is_killed:
                self._process = subprocess.Popen(with_this_process(command), stdin=subprocess.DEVNULL)
            return self._process


def _of_status(worker: str, status: int) -> WorkerLost:
    if status > 0:
        return _lost(f"{worker} ended with status {status} (--log_level info shows why)")
    how = f"was killed by {signal_name(-status)}" if status else "was told to end"
    return _lost(f"{worker} {how}", was_killed=True)


def _lost(how: str, *, was_killed: bool = False) -> WorkerLost:
    error = WorkerLost(f"{how}; the next job with --resume (in Python: with SkipCompleted) keeps the rows there are")
    error.how, error.was_killed = how, was_killed
    return error

"""An inference process that obeys its prompts: a stand-in where the tests need what no real engine does on purpose.

A prompt of token ids [what, count, ...]: ANSWER gives `count` tokens, one a step; DIE kills the process at its first
step; FAIL fails the request. What is answered depends on the prompt alone, and goes on where a dead engine stopped.
Started as the real one: `--fd N --model NAME`; the model's folder may hold the files `behaviour` (see `_obey_folder`)
and `hold` (see `_may_step`).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

from millrace.model_manager.wire.engine_messages import (
    CacheResized,
    EngineFailed,
    EngineReady,
    Heartbeat,
    ManagerToEngine,
    ResizeCache,
    Shutdown,
    StartEngine,
    StepReport,
)
from millrace.model_manager.wire.errors import InvalidRequest, ModelDoesNotFit
from millrace.model_manager.wire.messages import Cancel, Submit
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.status import EngineStats, ModelInfo
from millrace.model_manager.wire.timings import Timings
from millrace.model_manager.wire.transport import AsyncConnection, ConnectionLost
from tests.model_manager.model_infos import model_info

ANSWER, DIE, FAIL = 1, 2, 3
_PR_SET_PDEATHSIG = 1
_LEAKS = (
    "nanobind: leaked 1 instances!\n - leaked instance 0x7f of type A\nSee https://nanobind.readthedocs.io/refleaks"
)
_STEP = float(os.environ.get("MILLRACE_FAKE_STEP_SECONDS", "0"))
_MOST_HELD = 10


def answer(prompt: list[int], count: int) -> list[int]:
    """The tokens that the stand-in gives."""
    return [(sum(prompt) + index) % 60 for index in range(count)]


class StandIn:
    """Answers requests one token a step, at most max_num_seqs at a time."""

    def __init__(self, connection: AsyncConnection[ManagerToEngine], start: StartEngine) -> None:
        self._connection = connection
        self._start = start
        self._requests: dict[str, Request] = {}
        self._tokens: dict[str, list[int]] = {}
        self._steps = 0
        self._hold = Path(start.folder) / "hold"
        self._held_since = self._last_step = 0

    async def run(self) -> None:
        """Until the manager has enough of it."""
        self._connection.send(EngineReady(_info(self._start)))
        tasks = [asyncio.create_task(work()) for work in (self._beat, self._step_for_ever, self._listen)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _beat(self) -> None:
        while True:
            self._connection.send(Heartbeat(self._steps, 0.0))
            await asyncio.sleep(self._start.heartbeat)

    async def _listen(self) -> None:
        while not isinstance(message := await self._connection.receive(), Shutdown):
            if isinstance(message, Submit):
                for request in message.requests:
                    assert request.request_id not in self._requests, "a request was sent twice"
                    self._requests[request.request_id] = request
                    self._tokens[request.request_id] = list(request.output_token_ids)
            elif isinstance(message, ResizeCache):
                self._resize(message.cache_bytes)
            elif isinstance(message, Cancel):
                for request_id in message.request_ids:
                    if request_id in self._requests:
                        self._connection.send(StepReport(outputs=[self._finish(request_id, FinishReason.ABORT)]))

    def _resize(self, size: int) -> None:
        """The file `resizes` gets a line with the size; with the behaviour `die resizing`, it dies instead, once."""
        folder = Path(self._start.folder)
        wish = folder / "behaviour"
        if wish.exists() and wish.read_text() == "die resizing":
            wish.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        with (folder / "resizes").open("a") as lines:
            lines.write(f"{size}\n")
        self._connection.send(CacheResized(size))

    async def _step_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_STEP if self._requests else 0.005)
            report = self._step() if self._may_step() else StepReport()
            if report.outputs or report.failures or report.progress:
                self._connection.send(report)
                self._steps += 1

    def _may_step(self) -> bool:
        """Not more than _MOST_HELD times since the file `hold` came, or was touched again."""
        try:
            since = self._hold.stat().st_mtime_ns
        except FileNotFoundError:
            return True
        if since != self._held_since:
            self._held_since, self._last_step = since, self._steps + _MOST_HELD
        return self._steps < self._last_step

    def _step(self) -> StepReport:
        outputs, failures, progress = [], [], {}
        for request_id, request in list(self._requests.items())[: self._start.config.max_num_seqs]:
            what, count = request.prompt_token_ids[:2]
            if what == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            if what == FAIL:
                del self._requests[request_id]
                failures.append(Failure(request_id, InvalidRequest("it was asked to fail").info()))
                continue
            tokens = self._tokens[request_id]
            token = answer(request.prompt_token_ids, count)[len(tokens)]
            tokens.append(token)
            if len(tokens) == count:
                outputs.append(self._finish(request_id, FinishReason.LENGTH))
            else:
                progress[request_id] = [token]
        return StepReport(outputs, failures, progress, EngineStats(running=len(self._requests), steps=self._steps))

    def _finish(self, request_id: str, reason: FinishReason) -> Output:
        request = self._requests.pop(request_id)
        tokens = self._tokens.pop(request_id)
        return Output(request_id, tokens, reason, Timings(0, 0, 0), prompt_tokens=len(request.prompt_token_ids))


def _info(start: StartEngine) -> ModelInfo:
    return model_info(
        name=start.config.model,
        folder=start.folder,
        vocab_size=4096,
        max_model_len=4096,
        max_num_seqs=start.config.max_num_seqs,
        revision=start.config.revision or "",
        cache_bytes=int((start.config.kv_cache_gib or 1) * 2**30),
    )


async def _obey_folder(connection: AsyncConnection[ManagerToEngine], start: StartEngine) -> None:
    """`refuse`: the model does not fit; `crash`: exit with an error; `killed`: die by a signal; `hang`: give no sign of
    life, `hang once`: its successors do; `stuck`: give signs of life, but never load.
    """
    wish = Path(start.folder) / "behaviour"
    behaviour = wish.read_text() if wish.exists() else ""
    if (starts := Path(start.folder) / "starts").exists():
        with starts.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
    if behaviour == "refuse":
        connection.send(EngineFailed(ModelDoesNotFit("needs 900 GiB, there are 2").info()))
        await connection.drain()
        sys.exit(1)
    if behaviour == "crash":
        sys.exit(f"no such module: imaginary\n{_LEAKS}")
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "stuck":
        while True:
            connection.send(Heartbeat(0, 1000.0))
            await asyncio.sleep(start.heartbeat)
    if behaviour == "hang once":
        wish.unlink()
    if behaviour.startswith("hang"):
        connection.send(Heartbeat(0, 0.0))
        await connection.drain()
        time.sleep(3600)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=parser.parse_args().fd))
    connection: AsyncConnection[ManagerToEngine] = AsyncConnection(reader, writer, ManagerToEngine)
    try:
        start = await connection.receive()
        assert isinstance(start, StartEngine)
        await _obey_folder(connection, start)
        await StandIn(connection, start).run()
    except ConnectionLost:
        pass


if __name__ == "__main__":
    asyncio.run(_main())

"""Launches inference processes: forked by the fork server where the back end is ours, else each started anew."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ..store.environments import engine_environment, engine_python
from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig, cache_folder
from .fork_server_client import ForkedProcess, ForkServer, socket_pair
from .fork_server_process import ForkServerProcess

ENGINE_MODULE = "millrace.model_manager.engine.process"
ENGINE_COMMAND = (sys.executable, "-P", "-m", ENGINE_MODULE)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

LaunchedProcess = subprocess.Popen[bytes] | ForkedProcess


class Launcher:
    """Call it from the main thread only: the kernel ends a process when the thread that started it ends."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND, fork_server: ForkServerProcess | None = None) -> None:
        """`command` starts an engine; another than our own (tests) is never forked. `fork_server`: a started one."""
        self._command = command
        self._fork_server = ForkServer(fork_server) if sys.platform == "linux" and command == ENGINE_COMMAND else None

    async def launch(self, config: ModelConfig, gpus: Sequence[str]) -> tuple[LaunchedProcess, socket.socket]:
        """A new inference process and our end of the socket to it; raises OSError, ModelLoadFailed or ConfigError.

        If `gpus` are named, it sees no others. If this is cancelled, the process ends.
        """
        launching = asyncio.create_task(self._launch(config, gpus))
        try:
            return await asyncio.shield(launching)
        except asyncio.CancelledError:
            launching.add_done_callback(_end)
            raise

    def close(self) -> None:
        """End the fork server."""
        if self._fork_server is not None:
            self._fork_server.close()

    async def _launch(self, config: ModelConfig, gpus: Sequence[str]) -> tuple[LaunchedProcess, socket.socket]:
        variables = _variables(config, gpus)
        fork_server = self._fork_server if BACKENDS[config.backend].is_forked else None
        if fork_server is not None and (forked := await fork_server.fork(config.model, variables)) is not None:
            return forked
        with socket_pair() as (ours, theirs):  # others: a process that was forked too late must not read what is sent
            return spawn(self._command, theirs, config, variables), ours


def _end(launching: asyncio.Task[tuple[LaunchedProcess, socket.socket]]) -> None:
    if not launching.cancelled() and launching.exception() is None:
        process, ours = launching.result()
        ours.close()
        process.kill()
        process.wait()


def _variables(config: ModelConfig, gpus: Sequence[str]) -> dict[str, str]:
    """What an engine finds in its environment for its settings."""
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "torchinductor")}  # else in the temporary folder
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    threads = {} if config.num_threads is None else dict.fromkeys(_THREAD_VARIABLES, str(config.num_threads))
    return {**({} if "TORCHINDUCTOR_CACHE_DIR" in os.environ else compiled), **threads, **visible}


def spawn(
    command: Sequence[str], theirs: socket.socket, config: ModelConfig, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process of the command, or of the back end's own Python, with `theirs` as its socket to this process."""
    fd = theirs.fileno()
    environment: Mapping[str, str] = os.environ
    if (python := engine_python(config)) is not None:
        command, environment = (str(python), "-P", "-m", ENGINE_MODULE), engine_environment()
    return subprocess.Popen(
        [*command, "--fd", str(fd), "--model", config.model],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[fd],
        env={**environment, **variables},
    )

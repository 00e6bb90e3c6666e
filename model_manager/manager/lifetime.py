"""The manager process, from its arguments to its end.

Whoever starts it has locked the folder and hands over the descriptor; it holds the lock until it ends, and the kernel
frees it then, however that comes about. If its starter (`--starter PID`) ends before any client has connected, it ends.
On a clean end it leaves no process, socket or file.

With `--listen tcp://HOST:PORT --key_file PATH [--allow_commands]` in the place of the folder it serves clients of other
containers until a signal ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..wire.address import TcpAddress, listen_address
from ..wire.config import ManagerConfig
from ..wire.decoding import json_decoder
from ..wire.errors import ConfigError
from ..wire.manager_key import server_context
from ..wire.runtime import RuntimeDir
from ..wire.tcp import listening
from .bounded_log import BoundedLog, OneLine
from .finding import FLAG
from .fork_server_process import ForkServerProcess
from .launching import ENGINE_COMMAND
from .server import ManagerServer

_log = logging.getLogger(__name__)


def run(arguments: Sequence[str], engine_command: Sequence[str] | None, fork_server: ForkServerProcess | None) -> None:
    """Run until nobody needs the manager, or a signal comes; `fork_server`: what forks engines, if it has started."""
    options = _options(arguments)
    settings = json_decoder(ManagerConfig).decode(options.settings)
    serve = partial(ManagerServer, settings, engine_command or ENGINE_COMMAND, fork_server=fork_server)
    if options.listen is None:
        _run_here(RuntimeDir(options.runtime), options.lock_fd, partial(serve, starter=options.starter))
    else:
        _stay(options.listen, options.key_file, partial(serve, allow_commands=options.allow_commands))


def _log_to(handler: logging.Handler) -> None:
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _run_here(runtime: RuntimeDir, lock: int, serve: Callable[..., ManagerServer]) -> None:
    _log_to(BoundedLog(runtime.log))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(lock, False)  # else an engine would hold the lock when this process is gone
    asyncio.run(_serve(runtime, lock, partial(serve, is_fenced=lambda: runtime.is_fenced(lock))))
    runtime.remove(lock)  # not after an exception: whoever started this process reads the log, and sweeps


async def _serve(runtime: RuntimeDir, lock: int, serve: Callable[[], ManagerServer]) -> None:
    server = serve()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.end)
    sock = runtime.listen(lock)
    if sock is None:
        _log.warning("ends before it listens: another manager has its place, as it stood still")
        return
    with sock:
        await server.run(sock)


def _stay(address: TcpAddress, key_file: Path, serve: Callable[..., ManagerServer]) -> None:
    _log_to(logging.StreamHandler())
    try:
        tls = server_context(key_file)
        sock = listening(address)
    except ConfigError as error:
        print(f"millrace: {error}", file=sys.stderr)
        sys.exit(2)
    asyncio.run(_serve_tcp(sock, partial(serve, tls=tls)))


async def _serve_tcp(sock: socket.socket, serve: Callable[[], ManagerServer]) -> None:
    server = serve()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.end)
    host, port = sock.getsockname()[:2]
    print(f"manager at {TcpAddress(host, port)}", flush=True)
    with sock:
        await server.run(sock)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millrace-manager")
    parser.add_argument("--runtime", type=Path)
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("--starter", type=int)
    parser.add_argument("--listen", type=listen_address)
    parser.add_argument("--key_file", type=Path)
    parser.add_argument(FLAG, action="store_true")
    parser.add_argument("--settings", required=True)
    return parser.parse_args(arguments)

"""The manager process: `python -m millrace.model_manager.manager.process --runtime FOLDER --lock-fd N --settings JSON`.

Whoever starts it has locked the folder and hands over the descriptor; it holds the lock until it ends, and the kernel
frees it then, however that comes about. On a clean end it leaves no process, socket or file.

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

import msgspec

from ..wire.address import TcpAddress, listen_address
from ..wire.config import ManagerConfig
from ..wire.errors import ConfigError
from ..wire.manager_key import server_context
from ..wire.runtime import RuntimeDir
from ..wire.tcp import listening
from .bounded_log import BoundedLog, OneLine
from .commands import FLAG
from .launching import ENGINE_COMMAND
from .server import ManagerServer


def main(arguments: Sequence[str] | None = None, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Run until nobody needs the manager, or a signal comes; `engine_command` starts an engine (another for tests)."""
    options = _options(arguments)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started it may ignore it; then no engine's end has a status
    settings = msgspec.json.decode(options.settings, type=ManagerConfig)
    if options.listen is None:
        serve = partial(ManagerServer, settings, engine_command, forks_soon=options.forks_soon)
        _run_here(RuntimeDir(options.runtime), options.lock_fd, serve)
    else:
        serve = partial(ManagerServer, settings, engine_command, allow_commands=options.allow_commands)
        _stay(options.listen, options.key_file, serve)


def _log_to(handler: logging.Handler) -> None:
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _run_here(runtime: RuntimeDir, lock: int, serve: Callable[[], ManagerServer]) -> None:
    _log_to(BoundedLog(runtime.log))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(lock, False)  # else an engine would hold the lock when this process is gone
    asyncio.run(_serve(runtime, serve))
    runtime.remove()  # not after an exception: whoever started this process reads the log, and sweeps


async def _serve(runtime: RuntimeDir, serve: Callable[[], ManagerServer]) -> None:
    server = serve()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.end)
    with runtime.listen() as sock:
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


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millrace-manager")
    parser.add_argument("--runtime", type=Path)
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("--listen", type=listen_address)
    parser.add_argument("--key_file", type=Path)
    parser.add_argument(FLAG, action="store_true")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--forks_soon", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

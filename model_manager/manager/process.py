"""The manager process: `python -m millrace.model_manager.manager.process --runtime FOLDER --lock-fd N --settings JSON`.

Whoever starts it has locked the folder and hands over the descriptor; it holds the lock until it ends, and the kernel
frees it then, however that comes about. On a clean end it leaves no process, socket or file.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..wire.config import ManagerConfig
from ..wire.runtime import RuntimeDir
from .bounded_log import BoundedLog
from .server import ManagerServer
from .supervisor import ENGINE_COMMAND


def main(arguments: Sequence[str] | None = None, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Run until nobody needs the manager; `engine_command` starts an engine (another one for tests)."""
    options = _options(arguments)
    runtime = RuntimeDir(options.runtime)
    logging.basicConfig(handlers=[BoundedLog(runtime.log)], level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(options.lock_fd, False)  # else an engine would hold the lock when this process is gone
    asyncio.run(_serve(runtime, msgspec.json.decode(options.settings, type=ManagerConfig), engine_command))
    runtime.remove()  # not after an exception: whoever started this process reads the log, and sweeps


async def _serve(runtime: RuntimeDir, settings: ManagerConfig, engine_command: Sequence[str]) -> None:
    server = ManagerServer(settings, engine_command)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.end)
    with runtime.listen() as listening:
        await server.run(listening)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millrace-manager")
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--settings", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

"""The process that a runner starts as a worker where millrace is installed: Beam's SDK worker, without a container.

`millrace-worker --id=… --provision_endpoint=…` is the command of a PROCESS environment
(`--environment_config='{"command": "…"}'`), and what the pool of an EXTERNAL one starts (worker_pool.py). It does what
the boot program in Beam's containers does: asks the runner what the job is, puts the job's own packages in place, and
becomes its worker. It ends with the process that started it, however that ends. Knows no pipeline.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

from millrace.model_manager.wire.imports import importing

from .beam_import import without

_PARENT_EVERY = 0.5
"""Seconds between looks at whether the process that started this one is there."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Work until the runner has no more work, or is gone."""
    parent = os.getppid()  # before the imports, which take a second: it may end meanwhile
    options = _options(arguments)
    os.environ["WORKER_ID"] = options.id
    with without(options.without.split()), importing():
        from apache_beam.runners.worker import sdk_worker_main  # here: as it is imported, it takes the id for its logs

        from .worker_environment import prepare

    _end_with(parent)
    status = 1
    try:
        with ExitStack() as at_end:
            prepare(options, at_end)
            sdk_worker_main.main([])
            status = 0
    except Exception:
        traceback.print_exc()  # a runner shows what its workers print, and no more
    finally:
        sys.stderr.flush()
        os._exit(status)  # threads of a bundle that nobody waits for any more would hold the process


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments that Beam's container contract names; a runner may leave out all but the first two."""
    parser = argparse.ArgumentParser(prog="millrace-worker", description="A worker, as a Beam runner starts it.")
    parser.add_argument("--id", required=True, type=lambda quoted: quoted.strip("'"))  # Prism quotes, as for a shell
    parser.add_argument("--provision_endpoint", required=True)
    parser.add_argument("--without", default="", help="libraries that Beam is imported without, for a faster start")
    for endpoint in ("logging", "artifact", "control"):
        parser.add_argument(f"--{endpoint}_endpoint", default="")
    return parser.parse_known_args(arguments)[0]


def _end_with(parent: int) -> None:
    """End this process when the one that started it has ended: a killed runner stops nobody."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_EVERY)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="millrace-parent", daemon=True).start()


if __name__ == "__main__":
    main()

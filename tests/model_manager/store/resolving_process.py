"""`resolve` and `find_adapter` in processes of their own, whose environment is given before the libraries read it.

python -m tests.model_manager.store.resolving_process MODEL [REVISION]
python -m tests.model_manager.store.resolving_process --adapter NAME
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from millrace.model_manager.store import find_adapter, resolve
from millrace.model_manager.wire.errors import ErrorInfo, MillraceError
from millrace.model_manager.wire.request import Adapter


def start(environment: dict[str, str], model: str, revision: str | None = None) -> subprocess.Popen[str]:
    """Begin resolving; `finish` gives the outcome."""
    return _start(environment, model, *([revision] if revision else []))


def _start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", __name__, *arguments]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Path:
    """The folder; raises what the process raised."""
    return Path(_outcome(process)["folder"])


def _outcome(process: subprocess.Popen[str]) -> dict[str, str]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    outcome: dict[str, str] = json.loads(output)
    if "folder" in outcome:
        return outcome
    raise ErrorInfo(**outcome).exception()


def run(environment: dict[str, str], model: str, revision: str | None = None) -> Path:
    """Resolve in another process; raises what it raised."""
    return finish(start(environment, model, revision))


def find(environment: dict[str, str], adapter: str) -> Adapter:
    """Find an adapter in another process; raises what it raised."""
    return Adapter(**_outcome(_start(environment, "--adapter", adapter)))


def main() -> None:
    try:
        if sys.argv[1] == "--adapter":
            outcome = msgspec.to_builtins(find_adapter(sys.argv[2]))
        else:
            outcome = {"folder": str(resolve(*sys.argv[1:]))}
    except MillraceError as error:
        info = error.info()
        outcome = {"kind": info.kind, "message": info.message}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()

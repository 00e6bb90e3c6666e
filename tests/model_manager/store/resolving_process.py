"""`resolve` in processes of its own, whose environment is given before the libraries read it.

python -m tests.model_manager.store.resolving_process MODEL [REVISION]
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from model_manager.store import resolve
from model_manager.wire.errors import ErrorInfo, MillraceError


def start(environment: dict[str, str], model: str, revision: str | None = None) -> subprocess.Popen[str]:
    """Begin resolving; `finish` gives the outcome."""
    command = [sys.executable, "-W", "error", "-m", __name__, model, *([revision] if revision else [])]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Path:
    """The folder; raises what the process raised."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    outcome = json.loads(output)
    if "folder" in outcome:
        return Path(outcome["folder"])
    raise ErrorInfo(**outcome).exception()


def run(environment: dict[str, str], model: str, revision: str | None = None) -> Path:
    """Resolve in another process; raises what it raised."""
    return finish(start(environment, model, revision))


def main() -> None:
    try:
        outcome = {"folder": str(resolve(*sys.argv[1:]))}
    except MillraceError as error:
        info = error.info()
        outcome = {"kind": info.kind, "message": info.message}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()

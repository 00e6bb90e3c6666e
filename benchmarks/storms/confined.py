"""python confined.py CONFINEMENT COMMAND …: becomes that command, under limits of the system and in control groups.

A process with gRPC's threads cannot do this between fork and exec: gRPC's threads in the child find their files
closed, and abort it (grpc issue 43055).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def confined(command: Sequence[str], limits: Mapping[int, int], groups: Sequence[Path]) -> list[str]:
    """The command that starts `command` in these control groups, under these limits by numbers of `resource`."""
    if not limits and not groups:
        return [*command]
    confinement = json.dumps({"limits": [*limits.items()], "groups": [str(group) for group in groups]})
    return [sys.executable, "-I", "-S", __file__, confinement, *command]


def main(confinement: str, command: list[str]) -> None:
    """Does not return."""
    asked = json.loads(confinement)
    for group in asked["groups"]:
        Path(group, "cgroup.procs").write_text("0")
    for what, value in asked["limits"]:
        resource.setrlimit(what, (value, value))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

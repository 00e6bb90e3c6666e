"""Two containers of a pod: namespaces of processes, mounts and the network, joined by a cable.

They share this machine's files except /tmp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_TOOLS = ("unshare", "nsenter", "ip", "mount")
_INSIDE = "mount -t tmpfs tmpfs /tmp && ip link set lo up && echo ready && exec sleep infinity"


class Container:
    """Lives until its block ends; with it all processes in it."""

    def __init__(self, host: str) -> None:
        self.host = host
        """Its IP address."""
        command = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            _INSIDE,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        if (said := self._process.stdout.readline()) != "ready\n":
            self.end()
            pytest.skip(f"namespaces cannot be made here: {said.strip()}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self.pid = int(children[0])
        """The process id of the container's first process, as this namespace has it."""
        self.inside = ("nsenter", "--target", str(self.pid), "--mount", "--net", "--pid")
        """What runs a command in it."""
        self.tmp = Path(f"/proc/{self.pid}/root/tmp")
        """Its /tmp, from outside."""

    def run(self, *command: str) -> None:
        """Run a command in it."""
        subprocess.run([*self.inside, *command], check=True)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def containers() -> Iterator[tuple[Container, Container]]:
    """Two, with a cable between them; skips a test where the machine does not let it."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"takes root, and {', '.join(missing) or 'namespaces'}")
    with ExitStack() as ends:
        both = Container("10.77.0.1"), Container("10.77.0.2")
        for each in both:
            ends.callback(each.end)
        first, second = (str(each.pid) for each in both)
        cable = ["type", "veth", "peer", "name", "cable", "netns", second]
        subprocess.run(["ip", "link", "add", "cable", "netns", first, *cable], check=True)
        for each in both:
            each.run("ip", "address", "add", f"{each.host}/24", "dev", "cable")
            each.run("ip", "link", "set", "cable", "up")
        yield both

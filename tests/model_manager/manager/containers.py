"""Two containers of a pod: namespaces of processes, mounts and the network, joined by a cable.

They share this machine's files except /tmp.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from millrace.model_manager.wire.die_with_parent import with_this_process
from tests.model_manager.manager.staying_manager import ROOT

_TOOLS = ("unshare", "nsenter", "ip", "mount")
_INSIDE = "trap '' CHLD && mount -t tmpfs tmpfs /tmp && ip link set lo up && echo ready && exec sleep infinity"
"""With that signal ignored the kernel reaps whom the first process adopts."""


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
        self._process = subprocess.Popen(
            with_this_process(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
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
        """Kill it whole; again does nothing."""
        with self._process:
            self._process.kill()


class ManInTheMiddle:
    """Whoever sits on the cable (packet_relay.py); it passes everything on until it is told otherwise."""

    def __init__(self, container: Container) -> None:
        command = [*container.inside, sys.executable, "-m", "tests.model_manager.manager.packet_relay", "left", "right"]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def now(self, what: str) -> dict[str, int]:
        """Have it do this with each frame from now on. Returns how many frames it has done what with before."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        counts: dict[str, int] = json.loads(self._line())
        return counts

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the relay has ended"
        return line

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def containers() -> Iterator[tuple[Container, Container]]:
    """Two, with a cable between them; skips a test where the machine does not let it."""
    with ExitStack() as ends:
        here, there = _begun(ends, "10.77.0.1", "10.77.0.2")
        _connect(here, "cable", there, "cable")
        _address(here, there)
        yield here, there


@contextmanager
def containers_with_someone_between() -> Iterator[tuple[Container, Container, ManInTheMiddle]]:
    """Two, and whoever sits on the cable between them; skips a test where the machine does not let it."""
    with ExitStack() as ends:
        here, there, between = _begun(ends, "10.77.0.1", "10.77.0.2", "")
        _connect(here, "cable", between, "left")
        _connect(there, "cable", between, "right")
        _address(here, there)
        for name in ("left", "right"):
            between.run("ip", "link", "set", name, "up")
        man = ManInTheMiddle(between)
        ends.callback(man.end)
        yield here, there, man


def skip_without_namespaces(*more_tools: str) -> None:
    """Skip a test for which root, or a tool, is missing."""
    missing = [tool for tool in (*_TOOLS, *more_tools) if shutil.which(tool) is None]
    missing += ["root"] if os.geteuid() != 0 else []
    if missing:
        pytest.skip(f"missing for namespaces of the kernel: {', '.join(missing)}")
    if Path("/tmp") in (*ROOT.parents, *Path(sys.executable).parents):
        pytest.skip("this checkout is below /tmp, of which each container has its own")


def _begun(ends: ExitStack, *hosts: str) -> list[Container]:
    skip_without_namespaces()
    found = [Container(host) for host in hosts]
    for each in found:
        ends.callback(each.end)
    return found


def _connect(first: Container, name: str, second: Container, other: str) -> None:
    """A cable whose ends are called so. No frame on it is larger than its MTU."""
    ends = [("name", name, "netns", str(first.pid)), ("peer", "name", other, "netns", str(second.pid))]
    subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", *ends[1]], check=True)
    for container, end in ((first, name), (second, other)):
        container.run("ip", "link", "set", end, "gso_max_segs", "1")


def _address(*containers: Container) -> None:
    for each in containers:
        each.run("ip", "address", "add", f"{each.host}/24", "dev", "cable")
        each.run("ip", "link", "set", "cable", "up")

"""Pods as namespaces of the kernel: each has an address on one switch; its containers share its network alone.

Each container has its own processes, its own /tmp and its own names of hosts. All share this machine's other files.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from millrace.model_manager.wire.die_with_parent import with_this_process
from tests.model_manager.manager.containers import Container
from tests.waiting import eventually

_INSIDE = """mount --bind "$0" /etc/hosts && mount -t tmpfs tmpfs /tmp && hostname "$1" && shift && exec "$@" """
_CLONE_NEWNET = 0x40000000
_Answer = TypeVar("_Answer")


class Pod(Container):
    """A name, an address and a network; lives until its cluster ends, or earlier."""

    def __init__(self, name: str, host: str, folder: Path, hosts: Mapping[str, str]) -> None:
        """`folder`: of its containers' logs; `hosts`: addresses of others, by the names that it has for them."""
        super().__init__(host)
        self.name = name
        self._folder = folder
        self._hosts = folder / f"{name}.hosts"
        known = {"localhost": "127.0.0.1", name: host, **hosts}
        self._hosts.write_text("".join(f"{address} {each}\n" for each, address in known.items()))
        self._containers: list[PodContainer] = []

    def start(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], *, share_processes: bool = False
    ) -> PodContainer:
        """Run a container. `share_processes`: as with shareProcessNamespace, in the pod's namespace."""
        enter = ["nsenter", "--target", str(self.pid), "--net", *(["--pid"] if share_processes else [])]
        leave = ["unshare", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
        leave += [] if share_processes else ["--pid"]
        inside = ["sh", "-c", _INSIDE, str(self._hosts), self.name, *command]
        log = self._folder / f"{self.name}.{name}.log"
        started = PodContainer([*enter, *leave, *inside], log, variables, forks=2 if share_processes else 1)
        self._containers.append(started)
        return started

    def call(self, function: Callable[[], _Answer]) -> _Answer:
        """What a function of this process returns in the pod's network; it looks up names as this machine does."""
        with ThreadPoolExecutor(1, initializer=self._enter) as thread:
            return thread.submit(function).result()

    def _enter(self) -> None:
        """Put this thread alone into the pod's network."""
        with Path(f"/proc/{self.pid}/ns/net").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter the network of {self.name}")

    def end(self) -> None:
        """Kill it with all its containers, as if its machine had failed; again does nothing."""
        for container in self._containers:
            container.kill()
        super().end()


class PodContainer:
    """A command as the first process of a container, with the processes that it starts."""

    def __init__(self, command: Sequence[str], log: Path, variables: Mapping[str, str], forks: int) -> None:
        """`forks`: how many it takes to get to the container's first process."""
        self._log = log
        self._forks = forks
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                with_this_process(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables
            )
        self._first: int = eventually(self._last_child, f"the first process of {log.stem}")
        self.namespace = _namespace(self._first)
        """The namespace of its processes."""

    @property
    def said(self) -> str:
        """What containers of this name have written to their standard streams, in this pod."""
        return self._log.read_text(errors="replace")

    def poll(self) -> int | None:
        """The command's exit status, once it has ended."""
        return self._process.poll()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the first process a signal. Returns once it has ended; does nothing where it has."""
        if self._process.poll() is None:
            os.kill(self._first, number)
            self._process.wait()

    def _last_child(self) -> int | None:
        """The first process, once it is there."""
        assert self.poll() is None, self.said[-5000:]
        found = psutil.Process(self._process.pid)
        for _ in range(self._forks):
            children = found.children()
            if not children:
                return None
            (found,) = children
        return int(found.pid)


def commands(*namespaces: str) -> list[str]:
    """The command lines of all processes in these namespaces."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and _namespace(process.pid) in namespaces:
            found.append(" ".join(process.info["cmdline"] or []))
    return found


def _namespace(pid: int) -> str:
    """The PID namespace of a process, as the kernel names it; empty if the process has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


class Pods:
    """The pods of a cluster, whose cables end in one switch."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        """`folder`: of logs."""
        self._folder = folder
        self._ends = ends
        self._switch = Container("")
        ends.callback(self._switch.end)
        try:
            self._in_switch("add", "switch", "type", "bridge")
        except subprocess.CalledProcessError:
            pytest.skip("missing for namespaces of the kernel: its bridge")
        self._in_switch("set", "switch", "up")

    def pod(self, name: str, host: str, hosts: Mapping[str, str]) -> Pod:
        """A new pod at an address in 10.77.0.0/16, which has these names for others."""
        pod = Pod(name, host, self._folder, hosts)
        self._ends.callback(pod.end)
        ends = [("name", "cable", "netns", str(pod.pid)), ("peer", "name", host, "netns", str(self._switch.pid))]
        subprocess.run(["ip", "link", "add", *ends[0], "type", "veth", *ends[1]], check=True)
        self._in_switch("set", "dev", host, "master", "switch")
        self.mend(pod)
        pod.run("ip", "address", "add", f"{host}/16", "dev", "cable")
        pod.run("ip", "link", "set", "cable", "up")
        return pod

    def cut(self, pod: Pod) -> None:
        """Let nothing through its cable."""
        self._in_switch("set", "dev", pod.host, "down")

    def mend(self, pod: Pod) -> None:
        """Let all through its cable."""
        self._in_switch("set", "dev", pod.host, "up")

    def _in_switch(self, *arguments: str) -> None:
        self._switch.run("ip", "link", *arguments)


@contextmanager
def pods(folder: Path) -> Iterator[Pods]:
    """A cluster without pods yet."""
    with ExitStack() as ends:
        yield Pods(folder, ends)

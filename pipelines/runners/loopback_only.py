"""python loopback_only.py COMMAND …: runs that command so that no other machine reaches the ports it opens.

For programs such as Prism, which listen on all addresses and have no setting for it. The kernel stops each `bind` of
the command (seccomp's user notification, Linux 5.5), and this process puts 127.0.0.1 in the place of "all addresses"
before the call goes on. The command ends with this process, and this one with the command.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_NO_NEW_PRIVILEGES = 38
_SET_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_CONTINUE = 1
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CALLS = {"x86_64": (0xC000003E, 49, 317), "aarch64": (0xC00000B7, 200, 277)}
"""By machine: its name in filters, and the numbers of its calls bind and seccomp."""
_ALL = {socket.AF_INET: (4, bytes(4)), socket.AF_INET6: (8, bytes(16))}
"""By family: where an address begins in its structure, and the one that means all."""
_LOOPBACK = {socket.AF_INET: b"\x7f\0\0\1", socket.AF_INET6: bytes(10) + b"\xff\xff\x7f\0\0\1"}
"""127.0.0.1, for IPv6 as sockets of both have it."""
_PROBE = "import socket, sys; s = socket.socket(); s.bind(('', 0)); sys.exit(s.getsockname()[0] != '127.0.0.1')"


def on_loopback(command: Sequence[str]) -> list[str]:
    """What runs `command` like that."""
    return [sys.executable, "-I", "-S", __file__, *command]


def is_possible() -> bool:
    """Whether this machine allows for it: some containers do not."""
    probe = on_loopback([sys.executable, "-I", "-S", "-c", _PROBE])
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def main(command: list[str]) -> NoReturn:
    """Run the command; ends with its status."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _send_listener(theirs, _stop_binds())
        ending = Path(__file__).with_name("die_with_parent.py")
        os.execv(sys.executable, [sys.executable, "-I", "-S", str(ending), str(parent), *command])
    theirs.close()
    with contextlib.suppress(ValueError):  # the child could not, and has ended
        _answer(_receive_listener(ours))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


def _stop_binds() -> int:
    """Have the kernel stop the binds of this process from now on; a descriptor that tells of them."""
    architecture, bind, seccomp = _CALLS[platform.machine()]
    steps = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, 3, architecture), (_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, bind)]
    steps += [(_RETURN, 0, 0, _NOTIFY), (_RETURN, 0, 0, _ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener: int = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, described)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "the kernel does not stop binds for this process")
    return listener


def _send_listener(sock: socket.socket, listener: int) -> None:
    sock.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])


def _receive_listener(sock: socket.socket) -> int:
    """Raises ValueError where none comes."""
    (listener,) = socket.recv_fds(sock, 1, 1)[1]
    return listener


def _answer(listener: int) -> None:
    """Let binds go on, with another address where it means all, until no process is left that makes some."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        ((_, events),) = poll.poll()
        if not events & select.POLLIN:
            return
        with contextlib.suppress(OSError):  # who called was killed meanwhile
            notification = bytearray(_NOTIFICATION.size)
            fcntl.ioctl(listener, _RECEIVE, notification)
            call, pid, _, _, _, _, _, address, *_ = _NOTIFICATION.unpack(notification)
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(call, 0, *_bound(pid, address)))


def _bound(pid: int, address: int) -> tuple[int, int]:
    """Change the address in the memory of the process; the error and flags to answer with."""
    try:
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(address)
            (family,) = struct.unpack("=H", memory.read(2))
            offset, everywhere = _ALL.get(family, (0, b"none"))
            memory.seek(address + offset)
            if memory.read(len(everywhere)) == everywhere:
                memory.seek(address + offset)
                memory.write(_LOOPBACK[socket.AddressFamily(family)])
    except OSError as error:
        return -(error.errno or 1), 0
    return 0, _CONTINUE


if __name__ == "__main__":
    main(sys.argv[1:])

"""python loopback_only.py COMMAND …: runs that command so that no other machine reaches the ports it opens.

For programs such as Prism, which listen on all addresses and have no setting for it. The kernel stops each `bind` and
`listen` of the command (seccomp's user notification, Linux 5.6). This process puts the loopback address in the place of
"all addresses", and binds a socket that would listen without an address, before the call goes on. The command ends with
this process, and this one with the command.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
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
_CALLS = {"x86_64": (0xC000003E, 49, 50, 317), "aarch64": (0xC00000B7, 200, 201, 277)}
"""System calls by machine: its name in filters, and the numbers of its calls bind, listen and seccomp."""
_PIDFD_GETFD = 438
_ALL = {
    socket.AF_INET: (4, (bytes(4),)),
    socket.AF_INET6: (8, (bytes(16), bytes(10) + b"\xff\xff" + bytes(4))),
}
"""Offset of the address in its structure, by family, and the addresses that mean "all addresses"."""
_UNBOUND = 0
"""Port of a socket that has no address."""
_PROBE = """
import socket, sys
bound, unbound = socket.socket(), socket.socket()
bound.bind(("", 0))
unbound.listen()
sys.exit({each.getsockname()[0] for each in (bound, unbound)} != {"127.0.0.1"})
"""


def on_loopback(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` with its ports held to loopback."""
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
        _send_listener(theirs, _stop_calls())
        ending = Path(__file__).parents[2] / "model_manager" / "wire" / "die_with_parent.py"
        os.execv(sys.executable, [sys.executable, "-I", "-S", str(ending), str(parent), *command])
    theirs.close()
    with contextlib.suppress(ValueError):  # the child could not, and has ended
        _answer(_receive_listener(ours))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


def _stop_calls() -> int:
    """Have the kernel stop bind and listen of this process from now on; a descriptor that tells of them."""
    architecture, bind, listen, seccomp = _CALLS[platform.machine()]
    steps = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 0, 3, architecture), (_LOAD, 0, 0, 0)]
    steps += [(_JUMP_IF_EQUAL, 2, 0, bind), (_JUMP_IF_EQUAL, 1, 0, listen)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    listener: int = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, described)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "the kernel does not stop calls for this process")
    return listener


def _send_listener(sock: socket.socket, listener: int) -> None:
    sock.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])


def _receive_listener(sock: socket.socket) -> int:
    """Raises ValueError where none comes."""
    (listener,) = socket.recv_fds(sock, 1, 1)[1]
    return listener


def _answer(listener: int) -> None:
    """Let each call go on, with the loopback address in the place of "all addresses", until no process is left."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        ((_, events),) = poll.poll()
        if not events & select.POLLIN:
            return
        with contextlib.suppress(OSError):  # who called was killed meanwhile
            notification = bytearray(_NOTIFICATION.size)
            fcntl.ioctl(listener, _RECEIVE, notification)
            fcntl.ioctl(listener, _SEND, _answer_to(*_NOTIFICATION.unpack(notification)))


def _answer_to(
    call: int,
    pid: int,
    _flags: int,
    number: int,
    _arch: int,
    _at: int,
    descriptor: int,
    address: int,
    size: int,
    *_: int,
) -> bytes:
    """The kernel's notification of one call, field by field; the answer to it."""
    try:
        with _socket_of(pid, descriptor) as sock:
            if sock.family in _ALL and number == _CALLS[platform.machine()][1]:
                _change_address(pid, sock, address, size)
            elif sock.family in _ALL and sock.getsockname()[1] == _UNBOUND:
                sock.bind((_loopback_of(sock), 0))
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTSOCK):  # the call itself fails with these
            return _ANSWER.pack(call, 0, -(error.errno or errno.EPERM), 0)
    return _ANSWER.pack(call, 0, 0, _CONTINUE)


def _socket_of(pid: int, descriptor: int) -> socket.socket:
    """The same socket, in this process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")  # `pid` may be a thread's id
    process = os.pidfd_open(int(status.partition("\nTgid:")[2].split()[0]))
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        own: int = libc.syscall(_PIDFD_GETFD, process, ctypes.c_int(descriptor & 0xFFFFFFFF), 0)
        if own < 0:
            raise OSError(ctypes.get_errno(), "the socket cannot be fetched")
    finally:
        os.close(process)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _change_address(pid: int, sock: socket.socket, address: int, size: int) -> None:
    """Put the loopback address into the memory of the process, if "all addresses" is there."""
    offset, everywhere = _ALL[sock.family]
    end = offset + len(everywhere[0])
    if size < end:  # the call itself fails
        return
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        try:
            memory.seek(address)
            given = memory.read(end)
            (family,) = struct.unpack_from("=H", given)
            if family == sock.family and given[offset:] in everywhere:
                memory.seek(address + offset)
                memory.write(socket.inet_pton(sock.family, _loopback_of(sock)))
        except (OSError, OverflowError, struct.error):
            raise OSError(errno.EFAULT, "no such address") from None


def _loopback_of(sock: socket.socket) -> str:
    if sock.family == socket.AF_INET:
        return "127.0.0.1"
    is_v6_only = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return "::1" if is_v6_only else "::ffff:127.0.0.1"


if __name__ == "__main__":
    main(sys.argv[1:])

"""A program that listens on all addresses, run so that other machines do not reach it."""

import errno
import json
import subprocess
import sys

import psutil
import pytest

from millrace.pipelines.runners.loopback_only import is_possible, on_loopback

PROGRAM = """
import ctypes, json, os, socket, sys, threading
def bound(family, host, v6_only=0):
    with socket.socket(family) as sock:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6_only)
        if host is not None:
            sock.bind((host, 0))
        sock.listen()
        return sock.getsockname()[0]
def errno_of(descriptor, address, size):
    libc.bind(descriptor, ctypes.c_void_p(address), size)
    return ctypes.get_errno()
v4, v6, libc = socket.AF_INET, socket.AF_INET6, ctypes.CDLL(None, use_errno=True)
hosts = [bound(v4, ""), bound(v6, "::"), bound(v4, "127.0.0.2"), bound(v6, "::1"), bound(v6, "::", 1)]
hosts.append(bound(v6, "::ffff:0.0.0.0"))
thread = threading.Thread(target=lambda: hosts.extend([bound(v4, None), bound(v6, None), bound(v6, None, 1)]))
thread.start()
thread.join()
socket.socket(socket.AF_UNIX).bind("")
unbound = socket.socket()
errors = [errno_of(unbound.fileno(), 2**64 - 8, 16), errno_of(unbound.fileno(), 8, 16), errno_of(-1, 8, 16)]
print(json.dumps([os.getpid(), hosts, errors]), flush=True)
sys.stdin.read()
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def _where_it_is_possible() -> None:
    if not is_possible():
        pytest.skip("this kernel, or container, does not stop binds")


def test_all_addresses_become_the_loopback_address_and_the_status_is_the_programs() -> None:
    ended = subprocess.run(
        on_loopback([sys.executable, "-c", PROGRAM]), input="", stdout=subprocess.PIPE, text=True, check=False
    )
    _, hosts, errors = json.loads(ended.stdout)
    mapped = "::ffff:127.0.0.1"
    assert hosts == ["127.0.0.1", mapped, "127.0.0.2", "::1", "::1", mapped, "127.0.0.1", mapped, "::1"]
    assert errors == [errno.EFAULT, errno.EFAULT, errno.EBADF]
    assert ended.returncode == 7


def test_the_program_ends_with_who_runs_it() -> None:
    command = on_loopback([sys.executable, "-c", PROGRAM])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = psutil.Process(json.loads(process.stdout.readline())[0])
        process.kill()
        assert psutil.wait_procs([program], timeout=60)[1] == []

"""A program that listens on all addresses, run so that other machines do not reach it."""

import json
import subprocess
import sys

import psutil
import pytest

from millrace.pipelines.runners.loopback_only import is_possible, on_loopback

PROGRAM = """
import json, os, socket, sys, time
def bound(family, host):
    with socket.socket(family) as sock:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
        return sock.getsockname()[0]
v4, v6 = socket.AF_INET, socket.AF_INET6
hosts = [bound(v4, ""), bound(v6, "::"), bound(v4, "127.0.0.2"), bound(v6, "::1")]
socket.socket(socket.AF_UNIX).bind("")
print(json.dumps([os.getpid(), hosts]), flush=True)
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
    assert json.loads(ended.stdout)[1] == ["127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2", "::1"]
    assert ended.returncode == 7


def test_the_program_ends_with_who_runs_it() -> None:
    command = on_loopback([sys.executable, "-c", PROGRAM])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        program = psutil.Process(json.loads(process.stdout.readline())[0])
        process.kill()
        assert psutil.wait_procs([program], timeout=60)[1] == []

"""A fresh process gives back what its libraries took while they were linked, and goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.model_manager.engine.this_process import give_back, shared_with_fork_server, unchanged_libraries

_PROGRAM = """
import json, torch, psutil
from millrace.model_manager.engine.this_process import give_back, unchanged_libraries
model = torch.nn.Linear(300, 300)
x = torch.randn(4, 300)
wanted, before = model(x), psutil.Process().memory_info().rss
offered = give_back()
after = psutil.Process().memory_info().rss
print(json.dumps([before, after, offered, bool(torch.equal(model(x), wanted))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mappings can be looked at on Linux alone")
def test_pages_of_libraries_are_given_back_and_read_again_where_needed() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    before, after, offered, same = json.loads(done.stdout)
    assert same
    assert before - after > 50 * 2**20
    assert offered >= before - after


def test_only_parts_of_libraries_that_nobody_wrote_are_offered() -> None:
    untouched = "Rss:                   4 kB\nAnonymous:             0 kB\nSwap:                  0 kB\n"
    changed = untouched.replace("Anonymous:             0 kB", "Anonymous:             4 kB")
    swapped = untouched.replace("Swap:                  0 kB", "Swap:                  4 kB")
    smaps = (
        f"7f0000000000-7f0000001000 r--p 00000000 08:01 12  /lib/changed.so\n{changed}"
        f"7f0000001000-7f0000002000 r--p 00000000 08:01 12  /lib/swapped.so.1\n{swapped}"
        f"7f0000002000-7f0000004000 r-xp 00001000 08:01 12  /lib/untouched.so.13\n{untouched}"
        f"7f0000004000-7f0000005000 rw-p 00001000 08:01 12  /lib/writable.so\n{untouched}"
        f"7f0000005000-7f0000006000 r--p 00000000 08:01 12  /models/model.safetensors\n{untouched}"
        f"7f0000006000-7f0000007000 r--p 00000000 00:00 0 \n{untouched}"
        f"7f0000007000-7f0000008000 r--p 00000000 08:01 12  /lib/last.so\n{untouched}"
    )
    assert [*unchanged_libraries(smaps)] == [(0x7F0000002000, 0x2000), (0x7F0000007000, 0x1000)]


def test_nothing_is_done_where_mappings_cannot_be_looked_at(tmp_path: Path) -> None:
    assert give_back(tmp_path / "missing") == 0


def test_what_a_fork_has_not_changed_is_its_parents(tmp_path: Path) -> None:
    shared = bytearray(2**25)
    before = shared_with_fork_server()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, str(shared_with_fork_server()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert before + len(shared) < int(os.read(reading, 32))
    os.close(reading)
    os.close(writing)
    assert shared_with_fork_server(tmp_path / "none") == 0

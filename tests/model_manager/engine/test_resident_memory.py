"""A fresh process gives back what its libraries took while they were linked, and goes on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from model_manager.engine.resident_memory import give_back

_PROGRAM = """
import json, torch, psutil
from model_manager.engine.resident_memory import give_back
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


def test_mappings_that_were_written_are_left_alone(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "7f0000000000-7f0000001000 r--p 00000000 08:01 12                         /lib/changed.so\n"
        "Rss:                   4 kB\nAnonymous:             4 kB\n"
        "7f0000001000-7f0000002000 rw-p 00001000 08:01 12                         /lib/writable.so\n"
        "Rss:                   4 kB\nAnonymous:             0 kB\n"
        "7f0000002000-7f0000003000 r--p 00000000 00:00 0 \n"
        "Rss:                   4 kB\nAnonymous:             0 kB\n"
    )
    assert give_back(smaps) == 0


def test_nothing_is_done_where_mappings_cannot_be_looked_at(tmp_path: Path) -> None:
    assert give_back(tmp_path / "missing") == 0

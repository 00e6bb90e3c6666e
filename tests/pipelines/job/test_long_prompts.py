"""What a long prompt costs the process that tokenizes it: the peak of its resident memory, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.job_commands import job_command
from tests.json_lines import rows_of, write_rows

LENGTH = 10_000_000
TEXT = ("What is the answer to this question? " * (LENGTH // 37 + 1))[:LENGTH]
_OF_A_JOB = 380
"""MiB. A job takes 231, and 174 without the long row. One that tokenizes the row, even in pieces, takes 432."""
_TOKENIZED = 4_000_000
_OF_A_TOKENIZER = 300
"""MiB. It takes 149 in pieces, 823 as one text."""

_TOKENIZES = """
import sys
from pathlib import Path
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
tokenizer = Tokenizer.load(resolve(EMBEDDED_MODEL))
print(len(tokenizer.encode(Path(sys.argv[1]).read_text())))
"""


_MEASURES = """
import resource, subprocess, sys
with open(sys.argv[1], "w") as shown:
    status = subprocess.call(sys.argv[2:], stdout=shown, stderr=shown)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""
"""Starts a command from a small process: the kernel counts what a process had before its exec, as a copy of that which
starts it, which in tests may hold gigabytes.
"""


def peak_mib(command: Sequence[str], output: Path) -> float:
    """The most memory that the process of a command had, which ends well and prints to a file."""
    measured = [sys.executable, "-S", "-c", _MEASURES, str(output), *command]
    ended = subprocess.run(measured, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 0, output.read_text()
    return int(ended.stdout) / 1024


@pytest.mark.usefixtures("runtime")
def test_a_prompt_of_10_mb_is_a_dead_letter_and_is_not_tokenized(tmp_path: Path) -> None:
    rows = [{"id": "long", "prompt": TEXT}, {"id": "short", "prompt": "What is 1 + 1?"}]
    prompts = write_rows(tmp_path / "rows.jsonl", rows)
    command = [*job_command("run", prompts, tmp_path / "out" / "c"), "--backend=fake", "--max_tokens=5", "--linger=0.5"]
    peak = peak_mib(command, tmp_path / "shown")
    (letter,) = rows_of(tmp_path, "out/c.dead_letters*.jsonl")
    assert (letter["id"], letter["error"]) == ("long", "PromptTooLong")
    assert "characters, millrace-tiny has 1024 positions, of at most 13 characters each" in letter["reason"]
    assert [row["id"] for row in rows_of(tmp_path, "out/c-*.jsonl")] == ["short"]
    assert peak < _OF_A_JOB


def test_a_text_of_4_mb_is_tokenized_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT[:_TOKENIZED])
    peak = peak_mib([sys.executable, "-c", _TOKENIZES, str(tmp_path / "text")], tmp_path / "shown")
    assert int((tmp_path / "shown").read_text()) > _TOKENIZED // 10
    assert peak < _OF_A_TOKENIZER

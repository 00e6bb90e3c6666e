"""Answered rows are known by their ids and by what they say, in a table that has no object for each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.transforms.writing.answered_rows import ENTRY, NOT_KNOWN, AnsweredRows, entry, hash_of, in_order, kept


def answered(*rows: tuple[str, str | None]) -> AnsweredRows:
    entries = bytearray(b"".join(entry(identity, prompt) for identity, prompt in rows))
    in_order(entries)
    return AnsweredRows(entries)


@given(st.sets(st.text(st.characters(codec="utf-8"))), st.sets(st.text(st.characters(codec="utf-8"))))
def test_answered_rows_are_known_by_their_ids(inside: set[str], other: set[str]) -> None:
    rows = answered(*((identity, "0f") for identity in inside))
    assert all(rows.hashes(identity) == [hash_of("0f")] for identity in inside)
    assert not any(rows.hashes(identity) for identity in other - inside)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, "", "1", "ff" * 8, "00" * 8, "a0" * 8]))))
def test_all_that_an_id_said_is_known(rows: list[tuple[str, str | None]]) -> None:
    table = answered(*rows)
    for name in "abcdefg":
        said = [hash_of(prompt) for identity, prompt in rows if identity == name]
        assert sorted(table.hashes(name)) == sorted(said)


def test_a_row_without_a_hash_of_its_prompt_is_known_as_such() -> None:
    assert answered(("a", None), ("b", "")).hashes("a") == [NOT_KNOWN]


def test_thousands_of_answered_rows_are_told_apart() -> None:
    rows = answered(*((f"row:{number}", f"{number:x}") for number in range(1, 20_000)))
    assert all(rows.hashes(f"row:{number}") == [hash_of(f"{number:x}")] for number in range(1, 20_000))
    assert not any(rows.hashes(f"other:{number}") for number in range(20_000))


@pytest.mark.parametrize("parts", [[], [[]], [["b", "a"]], [["c"], [], ["b", "a"]]])
def test_a_file_has_the_rows_of_all_parts(parts: list[list[str]]) -> None:
    path = kept(bytearray(b"".join(entry(identity, "1") for identity in part)) for part in parts)
    rows, names = AnsweredRows.opened(path), [name for part in parts for name in part]
    assert [name for name in "abcd" if rows.hashes(name)] == sorted(names)
    assert Path(path).stat().st_size == ENTRY * len(names)


def test_a_file_ends_with_its_process(tmp_path: Path) -> None:
    code = "from millrace.transforms.writing.answered_rows import kept; print(kept([bytearray(24)]))"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert Path(made.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_row_takes_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = 50_000
    entries = bytearray(b"".join(entry(f"row:{number}", f"{number:x}") for number in range(rows)))
    tracemalloc.start()
    try:
        table = AnsweredRows.opened(kept([entries]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.hashes("row:7") == [hash_of("7")]
    assert peak < 16 * rows, "the index, and what it is made of; the table is a file"

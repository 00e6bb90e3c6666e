"""Answered rows are known by their ids and by what they say, in a table that has no object for each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.writing.answered_rows import ENTRY, NOT_KNOWN, AnsweredRows, entry, hash_of, in_order, kept


def answered(*rows: tuple[str, str | None]) -> AnsweredRows:
    entries = bytearray(b"".join(entry(identity, prompt) for identity, prompt in rows))
    in_order(entries)
    return AnsweredRows(entries)


def has(rows: AnsweredRows, identity: str, said: str | None = None) -> bool:
    at = rows.find(identity)
    return at >= 0 and rows.answers(at, hash_of(said))


@given(st.sets(st.text(st.characters(codec="utf-8"))), st.sets(st.text(st.characters(codec="utf-8"))))
def test_answered_rows_are_known_by_their_ids(inside: set[str], other: set[str]) -> None:
    rows = answered(*((identity, "0f") for identity in inside))
    assert all(has(rows, identity, "0f") and not has(rows, identity, "f0") for identity in inside)
    assert all(rows.find(identity) == -1 for identity in other - inside)


HASHES = ["1", "2", "10", "ff" * 8, "a0" * 8, "a0" * 7 + "a1"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, "", "00" * 8, *HASHES]))))
def test_a_row_answers_what_it_said_and_anything_if_that_is_not_known(rows: list[tuple[str, str | None]]) -> None:
    table = answered(*rows)
    for name in "abcdefg":
        said = {hash_of(prompt) for identity, prompt in rows if identity == name}
        assert all(has(table, name, each) == bool(said & {NOT_KNOWN, hash_of(each)}) for each in HASHES)


def test_thousands_of_answered_rows_are_told_apart() -> None:
    rows = answered(*((f"row:{number}", f"{number:x}") for number in range(1, 20_000)))
    assert all(has(rows, f"row:{number}", f"{number:x}") for number in range(1, 20_000))
    assert not any(has(rows, f"row:{number}", f"{number - 1:x}") for number in range(2, 20_000))
    assert all(rows.find(f"other:{number}") == -1 for number in range(20_000))


class Counted(bytearray):
    """Counts the bytes that are read of it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found)
        return found


def test_a_row_of_an_id_with_many_rows_is_found_among_few() -> None:
    entries = Counted(b"".join(entry("same", f"{2 * number:x}") for number in range(1, 20_001)))
    in_order(entries)
    rows = AnsweredRows(entries)
    assert all(has(rows, "same", f"{number:x}") == (number % 2 == 0) for number in range(20_000, 20_100))
    assert entries.read < 100 * 20 * ENTRY


@pytest.mark.parametrize("parts", [[], [[]], [["b", "a"]], [["c"], [], ["b", "a"]]])
def test_a_file_has_the_rows_of_all_parts(parts: list[list[str]]) -> None:
    path = kept(bytearray(b"".join(entry(identity, "1") for identity in part)) for part in parts)
    rows, names = AnsweredRows.opened(path), [name for part in parts for name in part]
    assert [name for name in "abcd" if has(rows, name, "1")] == sorted(names)
    assert Path(path).stat().st_size == ENTRY * len(names)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def made_by(code: str) -> Path:
    """A file that another process made; `code` is how that one goes on."""
    code = (
        f"import os; from millrace.transforms.writing.answered_rows import kept; print(kept([bytearray(24)])); {code}"
    )
    made = subprocess.run([sys.executable, "-u", "-c", code], check=False, capture_output=True, text=True)
    return Path(made.stdout.strip())


def test_a_file_ends_with_its_process(folder: Path) -> None:
    assert made_by("pass").is_relative_to(folder)
    assert list(folder.iterdir()) == []


def test_the_file_of_a_killed_process_goes_when_the_next_one_is_made(folder: Path) -> None:
    left = made_by("os.kill(os.getpid(), 9)")
    assert left.exists()
    paths = [Path(kept([bytearray(24)])) for _ in range(2)]
    assert not left.exists()
    assert all(path.exists() for path in paths), "a process may resume several outputs"
    assert {path.parent for path in paths} == set(folder.iterdir())


def test_a_damaged_output_leaves_no_file(folder: Path) -> None:
    def parts() -> Iterator[bytearray]:
        yield bytearray(24)
        raise ConfigError("damaged")

    with pytest.raises(ConfigError):
        kept(parts())
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_a_row_takes_no_object() -> None:
    rows = 50_000
    entries = bytearray(b"".join(entry(f"row:{number}", f"{number:x}") for number in range(rows)))
    tracemalloc.start()
    try:
        table = AnsweredRows.opened(kept([entries]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert has(table, "row:7", "7")
    assert peak < 16 * rows, "the index, and what it is made of; the table is a file"

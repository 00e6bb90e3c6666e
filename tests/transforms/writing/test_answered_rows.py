"""Answered rows are known by their ids and by what they say, in a table that has no object for each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import ConfigError
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
    assert table.hashes("row:7") == [hash_of("7")]
    assert peak < 16 * rows, "the index, and what it is made of; the table is a file"

"""`--limit N` reads the first N rows, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of
from tests.pipelines.refusals import Refused

FLAGS = ["--backend", "fake", "--linger", "30", "--quiet"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Three files of ten rows; the third row is none."""
    for file in range(3):
        lines = [json.dumps({"id": f"{file}{n}", "prompt": f"question {n}", "text": "t"}) for n in range(10)]
        lines[2] = "not json" if file == 0 else lines[2]
        (tmp_path / f"rows-{file}.jsonl").write_text("\n".join(lines))
    return f"{tmp_path}/rows-*.jsonl"


def ids(folder: Path, name: str = "c") -> list[str]:
    rows = [*rows_of(folder, f"{name}-*"), *rows_of(folder, f"{name}.dead_letters-*")]
    return sorted(row["id"].rsplit("/", 1)[-1] for row in rows)


def run(source: str, folder: Path, *flags: str) -> int:
    return dispatch(["run", "--input", source, "--output", str(folder / "c"), "--max_tokens", "2", *FLAGS, *flags])


FIRST = [f"{file}{n}" for file in range(3) for n in range(10)]


@pytest.mark.usefixtures("shared_runtime")
def test_the_first_rows_of_all_files_are_read_good_or_not(source: str, tmp_path: Path) -> None:
    bad = len("".join((tmp_path / "rows-0.jsonl").read_text().splitlines(keepends=True)[:2]))
    first = sorted([*FIRST[:2], f"rows-0.jsonl@{bad}", *FIRST[3:13]])
    workers = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    assert run(source, tmp_path, "--limit", "13", *workers) == 0
    assert ids(tmp_path) == first
    assert run(source, tmp_path, "--limit", "16", "--resume") == 0
    assert ids(tmp_path) == sorted([*first, *FIRST[13:16]])
    assert run(source, tmp_path, "--limit", "1000", "--overwrite") == 0
    assert len(ids(tmp_path)) == 30


@pytest.mark.usefixtures("shared_runtime")
def test_files_beyond_the_limit_are_not_opened(source: str, tmp_path: Path) -> None:
    (tmp_path / "rows-1.jsonl.gz").write_bytes(b"damaged")
    assert run(f"{tmp_path}/rows-*", tmp_path, "--limit", "10") == 0
    assert len(ids(tmp_path)) == 10
    assert run(f"{tmp_path}/rows-*", tmp_path, "--limit", "21", "--overwrite") == 0
    assert "rows-1.jsonl.gz" in ids(tmp_path)
    assert source


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize(
    ("command", "flags"), [("embed", []), ("classify", ["--labels", "a,b"]), ("score", ["--template", "{prompt}"])]
)
def test_every_command_has_it(command: str, flags: list[str], source: str, tmp_path: Path) -> None:
    rows = f"{tmp_path}/rows-1.jsonl"
    if command == "score":
        Path(rows).write_text(
            "".join(json.dumps({"id": f"1{n}", "prompt": "x", "continuations": "y"}) + "\n" for n in range(9))
        )
    if command == "classify":
        flags = [*flags, "--text_column", "text"]
    assert dispatch([command, "--input", rows, "--output", f"{tmp_path}/c", "--limit", "2", *FLAGS, *flags]) == 0
    assert ids(tmp_path) == ["10", "11"]
    assert source


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--input", "rows.jsonl", "--limit", "0"], "--limit 0: takes"),
        (["--input", "watch:x/*.jsonl", "--limit", "3"], "watch:x/*.jsonl is a stream"),
    ],
)
@pytest.mark.usefixtures("shared_runtime")
def test_a_limit_that_means_nothing_is_refused(flags: list[str], told: str, tmp_path: Path, refused: Refused) -> None:
    assert told in refused.run(*flags, "--output", str(tmp_path / "c"), *FLAGS)

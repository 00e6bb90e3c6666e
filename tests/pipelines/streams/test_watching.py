"""A job on a folder, as a user starts it, on Beam's Prism."""

import re
from pathlib import Path

import pytest

from tests.json_lines import rows_of
from tests.pipelines.streams.jobs import interrupted, nothing_is_left, stream
from tests.servers.kafka import until

pytestmark = [pytest.mark.runners, pytest.mark.slow]


def ids(folder: Path) -> list[str]:
    return sorted(row["id"] for row in rows_of(folder, "c-*.jsonl"))


def test_a_job_that_is_resumed_answers_what_came_since_and_nothing_is_left_beside_its_files(
    tmp_path: Path, runtime: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    out = tmp_path / "out"
    places = f"watch:{tmp_path}/*.txt", f"{out}/c"
    first = [f"{tmp_path}/a.txt@0", f"{tmp_path}/a.txt@4"]
    with stream(*places, "--window=1") as job:
        until(lambda: ids(out) == first)
        told = interrupted(job)
    assert "2 rows answered, 0 failed, of 2 rows read" in told.splitlines()
    assert f"completions:  {out}/c-" in told
    assert "with --resume" in told
    (tmp_path / "b.txt").write_text("three\n")
    with stream(*places, "--window=1", "--resume") as job:
        until(lambda: len(ids(out)) > 2)
        interrupted(job)
    assert ids(out) == [*first, f"{tmp_path}/b.txt@0"]
    assert [path.name for path in out.iterdir() if not re.fullmatch(r"c-.*\.jsonl", path.name)] == [".millrace"]
    nothing_is_left(runtime)

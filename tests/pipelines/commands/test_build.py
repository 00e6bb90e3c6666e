"""The graph that jobs have in common, on the local runner and a client without a model."""

from pathlib import Path

import pytest

from millrace.pipelines.commands import job_commands
from millrace.pipelines.flags.job_options import parse
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.streams.watch import WatchPrompts
from tests.json_lines import rows_of
from tests.transforms.running import pipeline


def watch(folder: Path, *flags: str) -> list[str]:
    """A job on what is in the folder, which is stopped then; the ids of all rows that its output then holds."""
    (folder / "out").mkdir(exist_ok=True)
    options = parse(["--input", f"watch:{folder}/*.txt", "--output", f"{folder}/out/c", *flags])
    read = WatchPrompts(f"{folder}/*.txt", interval=0.2, settle=0.0, stop_after=0.4).with_exception_handling()
    with pytest.MonkeyPatch.context() as patch, pipeline() as p:
        patch.setattr(job_commands, "reader", lambda _: read)
        job_commands.build(p, options, Generate("stand-in", open_client=StandInClient))
    return [row["id"] for row in rows_of(folder, "out/c-*.jsonl")]


def test_a_watch_that_is_resumed_answers_only_what_it_has_not_answered(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    before = watch(tmp_path)
    assert sorted(before) == [f"{tmp_path}/a.txt@0", f"{tmp_path}/a.txt@4"]
    (tmp_path / "b.txt").write_text("three\n")
    assert sorted(watch(tmp_path, "--resume")) == [*sorted(before), f"{tmp_path}/b.txt@0"]

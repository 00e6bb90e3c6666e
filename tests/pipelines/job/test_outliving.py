"""A job goes on after the death of a worker, or ends: a row written between deaths begins the count anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import apache_beam as beam
import pytest

from millrace.model_manager.wire.errors import WorkerLost
from millrace.pipelines.flags.job_options import JobOptions, parse
from millrace.pipelines.job.outliving import outliving_workers
from millrace.pipelines.job.summary import Outcome, outcome_so_far
from millrace.pipelines.places.sources_and_sinks import files_of


class Deaths:
    """A job whose workers are killed; `writes` says for each attempt whether a row is written before."""

    def __init__(self, folder: Path, writes: str) -> None:
        self.options = parse(["--input", "a.jsonl", "--output", f"{folder}/c"])
        self._left = list(writes)
        self.resumed: list[str] = []

    def build(self, options: JobOptions) -> beam.Pipeline:
        files = files_of(options)
        assert files is not None
        files.clear()  # as the salvage of what an interrupted run left
        self.resumed.append(options.if_exists)
        return beam.Pipeline()

    def run(self, _pipeline: beam.Pipeline, options: JobOptions) -> Outcome:
        if not self._left:
            return outcome_so_far(Counter())
        if self._left.pop(0) == "w":
            files = files_of(options)
            assert files is not None
            shard = Path(files.temporary_shard("run", "completions", "a"))
            shard.parent.mkdir(parents=True, exist_ok=True)
            shard.write_text("{}\n")
        error = WorkerLost("killed")
        error.was_killed = True
        raise error

    def outlive(self) -> Outcome:
        return outliving_workers(beam.Pipeline(), self.options, self.run, self.build)


def test_a_job_that_writes_rows_between_deaths_outlives_any_number_of_them(tmp_path: Path) -> None:
    deaths = Deaths(tmp_path, "w" * 9 + "--w--")
    deaths.outlive()
    assert deaths.resumed == ["resume"] * 14


@pytest.mark.parametrize("writes", ["----", "w---", "wwww---"])
def test_a_job_that_writes_nothing_over_four_deaths_ends(tmp_path: Path, writes: str) -> None:
    deaths = Deaths(tmp_path, writes)
    with pytest.raises(WorkerLost):
        deaths.outlive()
    assert len(deaths.resumed) == len(writes) - 1

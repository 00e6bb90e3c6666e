"""Continues an earlier run: its rows are kept, and their prompts skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa

from ..elements.completions import Prompt
from ..elements.repeated_ids import AnsweredIds
from ..runners import has_checkpoints, running, runs_here
from .answered_rows import AnsweredRows, hash_of, in_order, kept
from .completed_rows import completed_entries
from .output_files import OutputFiles, output_and_format
from .salvage import salvage


class SkipCompleted(beam.PTransform):
    """Drops the prompts whose completions an earlier output holds. Failed prompts are tried again.

    A completion counts for the prompts of its id whose content and own parameters it answers (`prompt_hash`). A prompt
    that shares the id of a completion and says something else is not skipped; it is counted for the job's summary.

    When applied, it first makes files of the complete rows that an interrupted run left. If that run had --overwrite,
    the files that it was to replace do not count, and are removed when this run is done. Ids and contents are compared
    as hashes, 24 bytes a row. On Beam's local runner they are read when applied, and workers share a temporary file of
    them; elsewhere workers read them, and every worker holds all twice, 48 bytes a row. Where Flink makes checkpoints,
    every worker reads all of them as it starts: Beam's runner (2.62) fails at the first checkpoint of a side input.
    """

    def __init__(
        self,
        output: str,
        *,
        output_format: str | None = None,
        schema: pa.Schema | None = None,
        ids_alone: bool = False,
    ) -> None:
        """`ids_alone`: a completion counts for every prompt of its id, for prompts that another template makes now.

        The others are as for WriteCompletions.
        """
        super().__init__()
        prefix, self._format = output_and_format(output, output_format)
        self._files = OutputFiles(prefix)
        self._schema = schema
        self._ids_alone = ids_alone

    def expand(self, prompts: Any) -> Any:
        if _runs_here(prompts.pipeline):
            skip = beam.ParDo(_Skip(self._ids_alone, kept(self._entries())))
        elif has_checkpoints(prompts.pipeline.options):
            salvage(self._files, self._format, self._schema)
            skip = beam.ParDo(_SkipReading(self._ids_alone, self._files.current("completions")))
        else:
            salvage(self._files, self._format, self._schema)
            skip = beam.ParDo(_SkipElsewhere(self._ids_alone), beam.pvalue.AsSingleton(self._read(prompts.pipeline)))
        return prompts | "Skip" >> skip.with_output_types(Prompt)

    def _entries(self) -> Iterator[bytearray]:
        finished = completed_entries(self._files.current("completions"))
        yield salvage(self._files, self._format, self._schema, finished)
        yield finished

    def _read(self, pipeline: beam.Pipeline) -> Any:
        """The entries, read by the workers and sent to all."""
        return (
            pipeline
            | "Earlier files" >> beam.Create(self._files.current("completions"))
            | "Spread" >> beam.Reshuffle()
            | "Their ids" >> beam.Map(lambda path: bytes(completed_entries([path])))
            | "All ids" >> beam.CombineGlobally(_joined)
        )


def _runs_here(pipeline: beam.Pipeline) -> bool:
    """Whether this process waits while workers of this machine run the pipeline."""
    runner = running(pipeline.runner)
    return runner.is_local and runs_here(pipeline.options, runner)


class _Skip(beam.DoFn):
    def __init__(self, ids_alone: bool, path: str = "") -> None:
        """`path`: of the table."""
        self._ids_alone = ids_alone
        self._path = path
        self._other = AnsweredIds()

    def setup(self) -> None:
        self._answered = AnsweredRows.opened(self._path)

    def process(self, prompt: Prompt) -> Sequence[Prompt]:
        at = self._answered.find(prompt.id)
        if at < 0:
            return [prompt]
        if self._ids_alone or self._answered.answers(at, hash_of(prompt.prompt_hash)):
            return ()
        self._other.count(prompt.id)
        return [prompt]


class _SkipReading(_Skip):
    """The table is read as a worker starts."""

    def __init__(self, ids_alone: bool, completions: list[str]) -> None:
        super().__init__(ids_alone)
        self._completions = completions

    def setup(self) -> None:
        entries = bytearray(completed_entries(self._completions))
        in_order(entries)
        self._answered = AnsweredRows(entries)


class _SkipElsewhere(_Skip):
    """The table comes as a side input, in any order. Runners may decode it anew for each bundle."""

    def setup(self) -> None:
        self._raw: bytes | None = None

    def process(self, prompt: Prompt, done: bytes) -> Sequence[Prompt]:  # type: ignore[override]
        if done is not self._raw:
            if done != self._raw:  # sorting takes twenty times as long as comparing
                entries = bytearray(done)
                in_order(entries)
                self._answered = AnsweredRows(entries)
            self._raw = done
        return super().process(prompt)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)

"""WriteCompletions: completions, and beside them dead letters, → sharded files on any Beam file system.

completions ─► temporary shards, as they come ─► (all of a window) ─► plan ─► redistribute ─► files in their places
"""

from __future__ import annotations

import uuid
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import GlobalWindows

from millrace.model_manager.wire.errors import ConfigError

from .finalize import CleanUp, MakeFile, PlanFiles, PlannedFile, WrittenFile
from .output_files import IfExists, OutputFiles, OutputKind, RunFiles, output_and_format
from .shards import Shard, WriteShards


class WriteCompletions(beam.PTransform):
    """Writes `completions`, or `(completions, dead_letters, …)`, and returns the WrittenFiles.

    Files are named as output_files.py says and hold the rows of output_rows.py. Rows are on the disk as they come, and
    the files are in their places when all is done. Output that is there is refused unless told otherwise: `resume` adds
    files beside it (see SkipCompleted; dead letters of the earlier run are replaced), `overwrite` replaces it at the
    end; interrupted, it goes on with `resume`.

    On streams each window (and pane) has its own files. Raises ConfigError, when applied, for output that is there, and
    for unbounded input without windows.
    """

    def __init__(
        self,
        output: str,
        *,
        output_format: str | None = None,
        if_exists: IfExists = "refuse",
        num_shards: int | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        """`output`: the beginning of the files' paths. `output_format`: jsonl (the default), parquet or csv.

        A final `.jsonl`, `.parquet` or `.csv` of `output` names the format. `num_shards`: most files, by default as
        many as 256 MiB each need. `schema`: of Extracted in Parquet and CSV (arrow_schema.py makes it).
        """
        super().__init__()
        prefix, self._format = output_and_format(output, output_format)
        if num_shards is not None and num_shards < 1:
            raise ConfigError(f"num_shards={num_shards}: takes 1 or more")
        self.files = OutputFiles(prefix)
        self._if_exists: IfExists = if_exists
        self._num_shards = num_shards
        self._schema = schema

    def expand(self, inputs: Any) -> Any:
        completions, *dead_letters = inputs if isinstance(inputs, tuple | list) else (inputs,)
        self.files.check(self._if_exists)
        for rows in (completions, *dead_letters):
            _check_windowing(rows)
        if self._if_exists == "overwrite" and completions.is_bounded:
            self.files.supersede()
        run = uuid.uuid4().hex
        kinds: list[tuple[OutputKind, Any]] = [("completions", completions)]
        kinds += [("dead_letters", letters) for letters in dead_letters]
        refuses = self._if_exists == "refuse" and _is_template(completions.pipeline) and completions.is_bounded
        shards = [
            rows
            | f"Write {kind} {number}"
            >> beam.ParDo(
                WriteShards(self.files, run, kind, openai=self._format == "jsonl", refuses=refuses)
            ).with_output_types(Shard)
            for number, (kind, rows) in enumerate(kinds)
        ]
        written = self._finalize(shards)
        if completions.is_bounded:
            self._clean_up(written)
        return written

    def _finalize(self, shards: list[Any]) -> Any:
        label = self.files.next_label() if self._if_exists == "resume" else ""
        plan = PlanFiles(RunFiles(self.files, self._format, label), self._num_shards)
        return (
            shards
            | "All shards" >> beam.Flatten()
            | "By kind" >> beam.Map(lambda shard: (shard.kind, shard)).with_output_types(tuple[str, Shard])
            | "Of a window" >> beam.GroupByKey()
            | "PlanFiles files" >> beam.ParDo(plan).with_output_types(PlannedFile)
            | "Spread files" >> beam.Reshuffle()
            | "Make files" >> beam.ParDo(MakeFile(self.files, self._schema)).with_output_types(WrittenFile)
        )

    def _clean_up(self, written: Any) -> None:
        """Clean up without a side input: Beam's runner for Flink takes no checkpoint while one is waited for.

        Nor can it keep None, so "no path" is an empty string.
        """
        in_one_window = written | "In one window" >> beam.WindowInto(GlobalWindows())
        paths = in_one_window | "Paths" >> beam.Map(lambda file: file.path).with_output_types(str)
        no_path = written.pipeline | "Once" >> beam.Create([""])
        (
            (paths, no_path)
            | "With none" >> beam.Flatten()
            | "Together" >> beam.Map(lambda path: ("", path)).with_output_types(tuple[str, str])
            | "When all are there" >> beam.GroupByKey()
            | "Clean up" >> beam.ParDo(CleanUp(self.files, self._if_exists))
        )

    def display_data(self) -> dict[str, Any]:
        return {
            "output": DisplayDataItem(self.files.prefix, label="Files"),
            "output_format": DisplayDataItem(self._format, label="Format"),
            "if_exists": DisplayDataItem(self._if_exists, label="Where output is there"),
        }


def _is_template(pipeline: beam.Pipeline) -> bool:
    """Whether the graph is kept, and may be run any number of times, when other output is there than now."""
    return bool(pipeline.options.view_as(GoogleCloudOptions).template_location)


def _check_windowing(completions: Any) -> None:
    windowing = completions.windowing
    whole = windowing.windowfn == GlobalWindows() and isinstance(windowing.triggerfn, DefaultTrigger)
    if windowing.accumulation_mode == AccumulationMode.ACCUMULATING:
        raise ConfigError("WriteCompletions takes panes that are discarded: accumulated ones would repeat rows")
    if not completions.is_bounded and whole:
        raise ConfigError("WriteCompletions of an unbounded input needs windows: apply beam.WindowInto before it")

"""WriteWindowedFiles: the results of a stream, and beside them dead letters, → files, one set for each window of time.

rows ─► (window, shard) ─► all of a firing ─► a temporary file ─► redistribute ─► renamed into its place

A row leaves the runner's own state when its window is over, and a file is renamed into its place only from what the
runner has made durable: on Dataflow by the redistribution, on Flink, where that is none, by input that is held until
the next checkpoint (last_steps.py). So an attempt that died leaves a temporary file at most.
"""

from __future__ import annotations

import math
import uuid
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Duration

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError

from ..elements.completions import Completion, DeadLetter
from ..elements.task_results import Result
from ..files.file_systems import create
from ..writing.finalize import MakeFile, PlannedFile, WrittenFile
from ..writing.output_files import IfExists, OutputFiles, OutputKind, RunFiles, output_and_format
from ..writing.output_rows import json_line
from .last_steps import stable_par_do

_DAY = 24 * 3600.0


class WriteWindowedFiles(beam.PTransform):
    """Writes `results`, or `(results, dead_letters, …)`, by fixed windows of event time; returns the WrittenFiles.

    Files are named as output_files.py says, by window and shard, and hold the rows of output_rows.py; a shard without
    rows has no file. A file is there when it is complete, some time after its window is over: when the watermark says
    so. Rows that come later still, up to `lateness`, are in further files of the window, whose names carry the pane;
    Prism writes those when the lateness is over. What is later than that the runner drops, and what it knows of the
    window it forgets. The readers of this package give no row late. Output that is there is refused, or with `resume`
    added to: then the names carry the number of the run too.

    Raises ConfigError, when applied, for output that is there.
    """

    def __init__(
        self,
        output: str,
        *,
        window: float = 60.0,
        lateness: float = _DAY,
        num_shards: int = 1,
        output_format: str | None = None,
        if_exists: IfExists = "refuse",
        schema: pa.Schema | None = None,
    ) -> None:
        """`output`: the beginning of the files' paths. `window`: seconds. `lateness`: seconds after a window's end, by
        the watermark, in which its rows may still come. `num_shards`: files of a window, at most.

        `output_format`: jsonl (the default), parquet or csv; dead letters are always JSONL. `schema`: as
        WriteCompletions.
        """
        super().__init__()
        prefix, self._format = output_and_format(output, output_format)
        if not 0 < window < math.inf:
            raise ConfigError(f"window={shown(window)}: takes seconds, more than 0")
        if not 0 <= lateness < math.inf:
            raise ConfigError(f"lateness={shown(lateness)}: takes seconds, 0 or more")
        if num_shards < 1:
            raise ConfigError(f"num_shards={num_shards}: takes 1 or more")
        if if_exists == "overwrite":
            raise ConfigError(
                "if_exists='overwrite': a stream takes refuse or resume; what it would replace has no end"
            )
        self.files = OutputFiles(prefix)
        self._window = window
        self._lateness = lateness
        self._num_shards = num_shards
        self._if_exists: IfExists = if_exists
        self._schema = schema

    def expand(self, inputs: Any) -> Any:
        results, *dead_letters = inputs if isinstance(inputs, tuple | list) else (inputs,)
        self.files.check(self._if_exists, endless=True)
        has_earlier = self.files.existing("completions") or self.files.existing("dead_letters")
        label = self.files.next_label() if has_earlier else ""
        build = _Build(RunFiles(self.files, self._format, label), self._num_shards)
        make = MakeFile(self.files, self._schema)
        kinds: list[tuple[OutputKind, Any]] = [
            ("completions", results),
            *(("dead_letters", each) for each in dead_letters),
        ]
        return (
            [self._lines(kind, rows, f"{kind} {number}") for number, (kind, rows) in enumerate(kinds)]
            | "All rows" >> beam.Flatten()
            | "Of a window" >> beam.GroupByKey()
            | "Build files" >> beam.ParDo(build).with_output_types(PlannedFile)
            | "Spread files" >> beam.Reshuffle()
            | "Place files" >> stable_par_do(make, results.pipeline).with_output_types(WrittenFile)
        )

    def _lines(self, kind: OutputKind, rows: Any, name: str) -> Any:
        windows = beam.WindowInto(
            FixedWindows(self._window),
            trigger=DefaultTrigger(),
            accumulation_mode=AccumulationMode.DISCARDING,
            allowed_lateness=Duration.of(self._lateness),
        )
        lines = beam.Map(_keyed_line, kind, self._num_shards, self._format == "jsonl").with_output_types(
            tuple[tuple[str, int], bytes]
        )
        return rows | f"Windows of {name}" >> windows | f"Lines of {name}" >> lines

    def display_data(self) -> dict[str, Any]:
        return {
            "output": DisplayDataItem(self.files.prefix, label="Files"),
            "output_format": DisplayDataItem(self._format, label="Format"),
            "window": DisplayDataItem(self._window, label="Seconds of a window"),
            "lateness": DisplayDataItem(self._lateness, label="Seconds that rows may be late"),
            "num_shards": DisplayDataItem(self._num_shards, label="Files of a window"),
        }


def _keyed_line(
    row: Completion | Result | DeadLetter, kind: OutputKind, num_shards: int, openai: bool
) -> tuple[tuple[str, int], bytes]:
    """A row's shard follows from its id, so that an attempt that is repeated puts it there again."""
    return (kind, zlib.crc32(row.id.encode("utf-8", "surrogatepass")) % num_shards), json_line(row, openai=openai)


class _Build(beam.DoFn):
    """The rows of a firing → a temporary file that holds them, planned to be renamed."""

    def __init__(self, files: RunFiles, num_shards: int) -> None:
        self._files = files
        self._num_shards = num_shards

    def process(
        self,
        element: tuple[tuple[OutputKind, int], Iterable[bytes]],
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[PlannedFile]:
        (kind, shard), lines = element
        path = self._files.path(kind, window, pane, shard, self._num_shards)
        built = FileSystems.join(self._files.files.temporary, f"building-{uuid.uuid4().hex}")  # attempts may overlap
        yield PlannedFile(kind, path, [built], _write(lines, built))


def _write(lines: Iterable[bytes], path: str) -> int:
    count = 0
    with create(path) as stream:
        for line in lines:
            stream.write(line)
            count += 1
    return count

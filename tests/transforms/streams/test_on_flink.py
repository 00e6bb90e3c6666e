"""Streams on Flink, which goes back to its last checkpoint when a step fails: each row once, in its own window."""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows

from millrace.transforms.elements.completions import Completion, Prompt
from millrace.transforms.generate import Generate
from millrace.transforms.streams.watch import WatchPrompts
from millrace.transforms.streams.windowed_files import WriteWindowedFiles
from millrace.transforms.writing.output_files import window_label
from tests.job_commands import NO_PIP_FREEZE
from tests.servers.flink import Flink, flink
from tests.servers.kafka import until
from tests.transforms.streams.test_on_prism import TardyClient, meanwhile, rows

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

FILES, ROWS = 10, 10
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A job goes on beside the next one's: Beam's job server does not end a job that it is told to cancel."""
    # A worker starts with `python -P`: without a path it imports another package called `tests`.
    with flink(tmp_path_factory.mktemp("flink"), {"PYTHONPATH": str(ROOT)}, embedded=True) as running:
        yield running


def on(cluster: Flink) -> PipelineOptions:
    flags = ["--runner=PortableRunner", f"--job_endpoint={cluster.job_endpoint}", "--streaming", "--parallelism=2"]
    flags += ["--environment_type=EXTERNAL", f"--environment_config={cluster.workers}"]
    return PipelineOptions([*flags, NO_PIP_FREEZE, "--checkpointing_interval=1000"])


class FailOnce(beam.DoFn):
    """Passes on what it gets, and fails the first time that an element has the mark, with all that came since then."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder = folder
        self._mark = mark

    def process(self, element: Any) -> Iterator[Any]:
        failed = self._folder / f"failed-{self._mark}"
        if self._mark in str(element) and not failed.exists():
            failed.touch()
            raise RuntimeError(f"{self._mark}: as the test wants it")
        yield element


def differently(row: Completion) -> Completion:
    """As a step that is not deterministic: another attempt gives another text."""
    return Completion(id=row.id, text=uuid.uuid4().hex, finish_reason=row.finish_reason)


class Noted(beam.DoFn):
    """Notes the window of each prompt, in a file named by its id: another attempt may find another one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(self, prompt: Any, window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{prompt.id} {uuid.uuid4().hex}").write_text(json.dumps([prompt.id, window_label(window)]))
        yield prompt


@pytest.mark.parametrize("stateful", [False, True], ids=["in bundles", "in state"])
def test_each_row_is_in_one_file_though_steps_fail(cluster: Flink, tmp_path: Path, stateful: bool) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()

    def put(number: int) -> None:
        lines = (json.dumps({"id": f"{number}-{row}", "prompt": f"p{row} {row}"}) + "\n" for row in range(ROWS))
        (folder / "part").write_text("".join(lines))
        (folder / "part").rename(folder / f"{number}.jsonl")

    def is_read(number: int) -> bool:
        return any((tmp_path / "noted").glob(f"{number}-*"))

    def come() -> None:
        """Each file when the rows of the one before it are read."""
        for number in range(FILES):
            put(number)
            until(partial(is_read, number), "its rows are read")

    def all_are_there(files: int) -> bool:
        return {row["id"] for _, row in rows(out)} == {
            f"{number}-{row}" for number in range(files) for row in range(ROWS)
        }

    generate = Generate("stand-in", open_client=TardyClient, stateful=stateful)
    p = beam.Pipeline(options=on(cluster))
    prompts = p | WatchPrompts(f"{folder}/*.jsonl", interval=0.5, settle=0.5)
    noted = prompts | beam.WindowInto(FixedWindows(4)) | beam.ParDo(Noted(tmp_path / "noted")).with_output_types(Prompt)
    answers = noted | generate | beam.ParDo(FailOnce(tmp_path, "'4-7'"))
    changed = answers | beam.Map(differently).with_output_types(Completion)
    written = changed | WriteWindowedFiles(f"{out}/out", window=4.0)
    _ = written | "Fail when a file is there" >> beam.ParDo(FailOnce(tmp_path, "00000-of"))
    with meanwhile(come):
        p.run()
    until(lambda: len(list(tmp_path.glob("failed-*"))) == 2, "both steps have failed")
    until(lambda: all_are_there(FILES), "each row is in a file")
    put(FILES)
    until(lambda: all_are_there(FILES + 1), "the job goes on; what it has done twice is there by now")

    found = list(rows(out))
    assert set(Counter(row["id"] for _, row in found).values()) == {1}
    windows = {tuple(json.loads(path.read_text())) for path in (tmp_path / "noted").iterdir()}
    for name, row in found:  # in its own window, and no pane of rows that were late
        assert name in {f"out-{window}-00000-of-00001.jsonl" for key, window in windows if key == row["id"]}

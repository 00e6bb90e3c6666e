"""Streams on Prism, whose clock, watermarks and timers are real: nothing lost or doubled, each row in its window."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.io.watch import PollResult
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Completion
from millrace.transforms.generate import Generate
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.streams.watch import PollPatterns, WatchPrompts
from millrace.transforms.streams.windowed_files import WriteWindowedFiles
from millrace.transforms.writing.output_files import window_label
from tests.job_commands import NO_PIP_FREEZE

pytestmark = pytest.mark.runners


def on(prism: str) -> PipelineOptions:
    flags = ["--runner=PortableRunner", f"--job_endpoint={prism}", "--environment_type=LOOPBACK", "--streaming"]
    return PipelineOptions([*flags, NO_PIP_FREEZE])


def rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the file, row) of all that is written."""
    for path in sorted(folder.glob("out-*.jsonl")):
        yield from ((path.name, json.loads(line)) for line in path.read_text().splitlines())


@contextmanager
def meanwhile(work: Any) -> Iterator[None]:
    """`work` goes on in a thread of its own until the block is over."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


INTERVAL, SETTLE, FILES = 0.5, 2.0, 9


class Looks(PollPatterns):
    """Looks until all files are found, and notes when. Workers are threads of this process."""

    found: ClassVar[dict[str, float]] = {}
    """When a look found each file first, by its name."""
    writing = threading.Lock()
    """Held while a file has new rows and not yet its new time."""

    def __call__(self, watched: tuple[list[str], float]) -> PollResult:
        with Looks.writing:
            result = super().__call__(watched)
        for each in result.outputs:
            Looks.found.setdefault(Path(each.value.path).name, time.time())
        return result.with_watermark(MAX_TIMESTAMP) if len(result.outputs) == FILES else result


def test_a_watched_folder_becomes_files_by_window_with_each_row_once(prism: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()

    def put(number: int) -> None:
        name = f"{number}.jsonl"
        text = "".join(json.dumps({"id": f"{number}-{row}", "prompt": f"prompt {row}"}) + "\n" for row in range(20))
        (folder / f"{name}.part").write_text(text)
        if number % 2:  # renamed into place
            (folder / f"{name}.part").rename(folder / name)
            return
        with (folder / name).open("w") as file:  # written bit by bit, however long that takes
            for line in text.splitlines(keepends=True):
                with Looks.writing:
                    file.write(line)
                    file.flush()
                    modified(folder / name, time.time() + 3600)
                time.sleep(0.03)
        modified(folder / name, time.time())

    def come() -> None:
        for number in range(2, 8):
            put(number)
            time.sleep(0.4)
        (folder / "bad.jsonl").write_text("{no json\n")

    put(0)
    put(1)
    os.utime(folder / "1.jsonl", (1000, 1000))
    Looks.found.clear()
    with meanwhile(come), beam.Pipeline(options=on(prism)) as p:
        watch = WatchPrompts(f"{folder}/*.jsonl", interval=INTERVAL, settle=SETTLE)
        watch._look = Looks(INTERVAL, SETTLE)
        prompts, letters = p | watch.with_exception_handling()
        results, failed = prompts | Generate("stand-in", open_client=StandInClient).with_exception_handling()
        _ = (results, failed, letters) | WriteWindowedFiles(f"{out}/out", window=2.0, num_shards=2)

    written = list(rows(out))
    assert Counter(row["id"] for _, row in written) == Counter(f"{n}-{row}" for n in range(8) for row in range(20))
    for name, row in written:
        file = folder / f"{row['id'].split('-')[0]}.jsonl"
        at = file.stat().st_mtime
        too_late = Looks.found[file.name] - SETTLE - 2 * INTERVAL  # after `at` only where a look came too late
        assert label(at) <= name.removeprefix("out-")[: len(label(at))] <= label(max(at, too_late)), name
    (letter,) = out.glob("out.dead_letters-*.jsonl")
    assert "not JSON" in letter.read_text()


def label(at: float) -> str:
    """The window of a time in the name of its file; of two labels the earlier one is less."""
    (window,) = FixedWindows(2).assign(beam.transforms.window.WindowFn.AssignContext(at))
    return window_label(window)


def modified(path: Path, at: float) -> None:
    os.utime(path, (at, at))


def completion(identity: str) -> Completion:
    return Completion(id=identity, finish_reason=FinishReason.STOP)


def test_rows_that_come_when_their_window_is_over_are_not_lost(prism: str, tmp_path: Path) -> None:
    def at(second: float, identity: str) -> TimestampedValue:
        return TimestampedValue(completion(identity), second)

    stream = test_stream.TestStream().add_elements([at(0, "a"), at(70, "b")]).advance_watermark_to(60)
    stream = stream.add_elements([at(10, "late")]).advance_watermark_to(10**4)
    stream = stream.add_elements([at(20, "later")]).advance_watermark_to(10**6)
    stream = stream.add_elements([at(30, "over a day late")]).advance_watermark_to_infinity()
    with beam.Pipeline(options=on(prism)) as p:
        _ = p | stream | WriteWindowedFiles(f"{tmp_path}/out")
    assert sorted(row["id"] for _, row in rows(tmp_path)) == ["a", "b", "late", "later"]


class TardyClient(StandInClient):
    """Answers after as many tenths of a second as the prompt's second word says."""

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        answer, future = super().submit(prompt, params, request_id=request_id), Future[Any]()
        threading.Timer(int(prompt.split()[1]) / 10, lambda: future.set_result(answer.result())).start()
        return future


class Placed(beam.DoFn):
    """(text, timestamp, window's start)."""

    def process(
        self, row: Completion, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
    ) -> Iterator[str]:
        yield f"{row.text} {float(timestamp):g} {float(window.start):g}"


def stream_of(elements: list[tuple[Timestamp, Any]]) -> PeriodicImpulse:
    """An unbounded collection that ends."""
    return PeriodicImpulse(start_timestamp=time.time(), fire_interval=0.01, data=elements)


def write_line(element: tuple[str, Iterable[str]], path: str) -> None:
    """A line of what came together."""
    key, values = element
    with Path(path).open("a") as file:
        file.write(json.dumps([key, sorted(values)]) + "\n")


@pytest.mark.parametrize(
    ("windows", "starts"),
    [
        (FixedWindows(10), lambda second: [second // 10 * 10]),
        (SlidingWindows(10, 5), lambda second: [second // 5 * 5 - 5, second // 5 * 5]),
    ],
    ids=["fixed", "sliding"],
)
def test_the_stateful_variant_is_complete_in_its_own_windows(
    prism: str, tmp_path: Path, windows: Any, starts: Any
) -> None:
    seconds = range(0, 40, 2)
    elements = [(Timestamp(second), f"p{second} {second % 14}") for second in seconds]
    path = tmp_path / "seen"
    with beam.Pipeline(options=on(prism)) as p:
        _ = (
            p
            | stream_of(elements)
            | beam.WindowInto(windows)
            | Generate("stand-in", open_client=TardyClient, stateful=True)
            | beam.ParDo(Placed()).with_output_types(str)
            | beam.Map(lambda placed: ("all", placed)).with_output_types(tuple[str, str])
            | beam.GroupByKey()
            | beam.Map(write_line, str(path))
        )
    groups = [json.loads(line)[1] for line in path.read_text().splitlines()]
    expected = sorted(f"P{second} {second % 14} {second} {start}" for second in seconds for start in starts(second))
    assert sorted(placed for group in groups for placed in group) == expected
    windows_of = [{placed.rsplit(" ", 1)[1] for placed in group} for group in groups]
    assert all(len(found) == 1 for found in windows_of)
    assert len(windows_of) == len({window for (window,) in windows_of})  # each window once: nothing was late


def test_keyed_elements_and_dead_letters_come_out_of_the_stateful_variant(prism: str, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    with beam.Pipeline(options=on(prism)) as p:
        given = p | stream_of([(Timestamp(0), each) for each in (("k1", "a 1"), ("k2", "b 2"), ("k3", ""))])
        given |= beam.WindowInto(FixedWindows(10))
        generate = Generate("stand-in", open_client=TardyClient, stateful=True)
        answers, letters = given | generate.with_exception_handling()
        found = (
            answers | "Texts" >> beam.MapTuple(lambda key, answer: (key, answer.text)),
            letters | "Reasons" >> beam.MapTuple(lambda key, letter: (key, letter.reason)),
        )
        _ = found | beam.Flatten() | beam.GroupByKey() | beam.Map(write_line, str(path))
    assert sorted(json.loads(line) for line in path.read_text().splitlines()) == [
        ["k1", ["A 1"]],
        ["k2", ["B 2"]],
        ["k3", ["the prompt is empty"]],
    ]

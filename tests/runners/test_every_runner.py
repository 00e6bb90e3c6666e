"""The same jobs on every runner: each row is answered once, by one inference process, and nothing is left behind.

RUNNER=prism, or the beginning of any other target's name, runs those alone.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import SlidingWindows, TimestampedValue

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Completion, DeadLetter
from millrace.transforms.generate import Generate
from tests.forked_commands import run
from tests.job_commands import job_command
from tests.json_lines import rows_of
from tests.runners.targets import EVERY_ENVIRONMENT, ONE_OF_EACH, Servers, Target, only_on
from tests.runners.watching import nothing_is_left, watched
from tests.waiting import eventually

pytestmark = [pytest.mark.runners, pytest.mark.timeout(1800)]

FILES = 8
ROWS = 24
"""Rows in each file; the first file has two more that cannot be completed."""


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    for number in range(FILES):
        lines = [json.dumps({"id": f"{number}-{n}", "prompt": f"What is {number} + {n}?"}) for n in range(ROWS)]
        if number == 0:
            lines += ["not json", json.dumps({"id": "long", "prompt": "word " * 5000})]
        (tmp_path / f"prompts-{number}.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "prompts-*.jsonl")


def temporary_files() -> list[Path]:
    """Files in the suite's temporary folder, where Beam leaves empty folders."""
    return [path for path in Path(tempfile.gettempdir()).rglob("*") if not path.is_dir()]


@only_on(EVERY_ENVIRONMENT)
def test_millrace_run_completes_every_row_once_and_leaves_nothing(
    target: Target, servers: Servers, runtime: Path, prompts: str, tmp_path: Path
) -> None:
    before = temporary_files()  # Beam leaves the package of another test's job
    command = job_command("run", prompts, f"{tmp_path}/out/c")
    command += ["--max_tokens=16", "--linger=1", "--orphan_grace=1", "--hang_timeout=120", "--log_level=info"]
    command += target.job_flags(servers)
    with watched(runtime) as seen:
        ended = run(command, timeout=500)
    assert ended.returncode == 0, ended.stderr[-5000:]
    completed = rows_of(tmp_path, "out/c-*.jsonl")
    assert sorted(row["id"] for row in completed) == sorted(f"{f}-{n}" for f in range(FILES) for n in range(ROWS))
    assert all(row["text"] and row["finish_reason"] in ("stop", "length") for row in completed)
    dead = rows_of(tmp_path, "out/c.dead_letters-*.jsonl")
    assert {row["error"] for row in dead} == {"UnreadableRow", "PromptTooLong"}
    assert len(dead) == 2
    assert " completions in " in ended.stdout
    assert not target.exact_counts or f"{FILES * ROWS} completions in " in ended.stdout
    dead_letters = "dead letters: 2 rows (1 PromptTooLong, 1 UnreadableRow) in "
    assert not target.exact_counts or dead_letters in ended.stdout
    report = (tmp_path / "out" / "c.report.html").read_text()
    assert f"report:       {tmp_path}/out/c.report.html" in ended.stdout
    assert f"of {FILES * ROWS:,} rows" in report, "lengths and latencies are counted over the output's rows"
    assert len(seen.engines) == 1
    assert len(seen.managers) == 1
    assert not target.several_workers or len(seen.workers) > 1
    nothing_is_left(runtime)
    assert not (tmp_path / "out" / "c.tmp").exists()
    eventually(lambda: [path for path in temporary_files() if path not in before] == [], "no file is left")


class Noted(beam.DoFn):  # type: ignore[misc, unused-ignore]
    """Writes each element down, with its time and its window, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(
        self,
        element: Any,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[Any]:
        self._folder.mkdir(exist_ok=True, parents=True)
        line = json.dumps([element, float(timestamp), [float(window.start), float(window.end)]])
        (self._folder / f"{uuid.uuid4().hex}.jsonl").write_text(line + "\n")
        yield element


def timed(number: int) -> Any:
    """A keyed prompt, or, every fifth, something that is none, at a time of its own."""
    prompt = {"id": f"p{number}", "prompt": f"What is {number} + 1?"} if number % 5 else {"id": f"p{number}"}
    return TimestampedValue((f"key{number % 3}", prompt), 10 * number + 0.25)


def its_id(keyed: tuple[str, Completion | DeadLetter]) -> tuple[str, str]:
    return keyed[0], keyed[1].id


def counted(group: tuple[str, Iterable[Any]]) -> tuple[str, int]:
    return group[0], len(list(group[1]))


@only_on(ONE_OF_EACH)
def test_results_keep_key_time_and_windows_and_are_counted(
    target: Target, servers: Servers, runtime: Path, tmp_path: Path
) -> None:
    model, soon = ModelConfig(model="millrace-tiny", backend="fake"), ManagerConfig(linger=1, orphan_grace=1)
    generate = Generate(model, SamplingParams(max_tokens=8), manager=soon)
    options = PipelineOptions(target.job_flags(servers))
    pipeline = beam.Pipeline(runner=target.runner(options), options=options)
    prompts = pipeline | beam.Create(list(range(20))) | beam.Reshuffle() | beam.Map(timed)
    windowed = prompts | beam.WindowInto(SlidingWindows(size=50, period=25))
    completions, dead_letters = windowed | generate.with_exception_handling()
    ids = completions | beam.Map(its_id)
    ids | "Note" >> beam.ParDo(Noted(tmp_path / "completions"))
    dead_letters | "Their ids" >> beam.Map(its_id) | "Note dead" >> beam.ParDo(Noted(tmp_path / "dead"))
    groups = ids | beam.GroupByKey() | "Count" >> beam.Map(counted)
    groups | "Note groups" >> beam.ParDo(Noted(tmp_path / "groups"))
    result = pipeline.run()
    result.wait_until_finish()
    assert noted(tmp_path / "completions") == expected(n for n in range(20) if n % 5)
    assert noted(tmp_path / "dead") == expected(n for n in range(20) if not n % 5)
    assert grouped(tmp_path / "groups") == grouped_as_expected()
    counts = counters(result)
    if target.exact_counts:
        assert (counts["requests"], counts["failures"]) == (20, 4)
        assert 16 <= counts["generated_tokens"] <= 16 * 8
    else:
        assert 0 < counts["requests"] <= 20
    nothing_is_left(runtime)


def noted(folder: Path) -> list[Any]:
    return sorted((*element, time, *window) for element, time, window in rows_of(folder, "*.jsonl"))


def windows_of(time: float) -> list[tuple[float, float]]:
    starts = [start for start in range(-50, 500, 25) if start <= time < start + 50]
    return [(float(start), float(start + 50)) for start in starts]


def expected(numbers: Iterable[int]) -> list[Any]:
    times = [(number, 10 * number + 0.25) for number in numbers]
    return sorted((f"key{n % 3}", f"p{n}", time, *window) for n, time in times for window in windows_of(time))


def grouped(folder: Path) -> dict[tuple[str, float], int]:
    found = [((element[0], window[0]), element[1]) for element, _, window in rows_of(folder, "*.jsonl")]
    assert len(dict(found)) == len(found), "a window is grouped once"
    return dict(found)


def grouped_as_expected() -> dict[tuple[str, float], int]:
    return dict(Counter((key, start) for key, _, _, start, _ in expected(n for n in range(20) if n % 5)))


def counters(result: Any) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in result.metrics().query()["counters"]:
        if each.key.metric.namespace == "millrace":
            found[each.key.metric.name] += each.committed if each.committed is not None else each.attempted
    return found

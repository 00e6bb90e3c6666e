"""A failed prompt in a job, with and without `with_exception_handling`, compared with ParDo."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from millrace import Classify, Embed, Extract, Generate, ReadPrompts, Score
from millrace.model_manager.wire.errors import ConfigError, NonFiniteLogits, RequestError
from millrace.transforms.elements.completions import Prompt
from tests.transforms.clients import PickyClient, generate
from tests.transforms.running import check, pipeline

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
REMEDY = "`.with_exception_handling()` on the transform sends failed prompts to a dead-letter output instead"
TRANSFORMS: list[Callable[..., Any]] = [
    Generate,
    Score,
    Embed,
    lambda *given, **settings: Extract(SCHEMA, *given, **settings),
    lambda *given, **settings: Classify(["good", "bad"], *given, **settings),
]


def upper(text: str) -> str:
    """What ParDo is given in the place of a model."""
    if text == "nan":
        raise NonFiniteLogits("NaN")
    return text.upper()


def prompts(fine: int, failing: int) -> list[str]:
    return ["fine"] * fine + ["nan"] * failing


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_failed_prompt_fails_the_job_and_the_error_says_which_why_and_what_to_do(transform: Any) -> None:
    row = {"id": "p", "prompt": 3, "text": 3, "continuations": ["x"]}
    with pytest.raises(RequestError, match=f"prompt p: .*; {re.escape(REMEDY)}"), pipeline() as p:
        _ = p | beam.Create([row]) | transform("stand-in", open_client=PickyClient)


def test_who_asks_to_fail_fast_is_told_the_failed_prompt_alone() -> None:
    step = generate(client=PickyClient, fail_fast=True).with_exception_handling()
    with pytest.raises(NonFiniteLogits, match=r"prompt p: NaN( \[while|$)"), pipeline() as p:
        _ = p | beam.Create([Prompt(id="p", text="nan")]) | step


def par_do(*given: Any, **named: Any) -> Any:
    return beam.Map(upper).with_exception_handling(*given, **named)


def generating(*given: Any, **named: Any) -> Any:
    return generate(client=PickyClient).with_exception_handling(*given, **named)


def ends(job: beam.Pipeline, passes: bool, said: str) -> None:
    """The job ends well, or with an error that says so."""
    with contextlib.nullcontext() if passes else pytest.raises(ValueError, match=said):
        job.run().wait_until_finish()


BOTH = pytest.mark.parametrize("step", [par_do, generating])


@BOTH
def test_both_outputs_are_a_pair_and_have_their_tags(step: Any) -> None:
    with pipeline() as p:
        rows = p | beam.Create(prompts(3, 2), reshuffle=False)
        good, bad = rows | "Default" >> step()
        named = rows | "Named" >> step(main_tag="answers", dead_letter_tag="failed")
        positional = rows | "Positional" >> step("answers", "failed")
        found = [good, bad, named["answers"], named.failed, positional.answers, positional["failed"]]
        numbered = [rows | f"{n}" >> beam.Map(lambda _, n=n: n) for n, rows in enumerate(found)]
        check(numbered | beam.Flatten(), lambda rows: Counter(rows) == {0: 3, 1: 2, 2: 3, 3: 2, 4: 3, 5: 2})


@BOTH
@pytest.mark.parametrize(("failing", "passes"), [(0, True), (1, True), (2, True), (3, False)])
def test_the_job_fails_where_more_than_the_threshold_failed(step: Any, failing: int, passes: bool) -> None:
    job = beam.Pipeline(runner="FnApiRunner")
    _ = job | beam.Create(prompts(10 - failing, failing)) | step(threshold=0.2)
    ends(job, passes, r"3 of 10 rows failed, more than threshold=0\.2|3 / 10 = 0\.3 > 0\.2")


def test_the_error_of_a_threshold_tells_one_failed_prompt() -> None:
    step = generating(threshold=0)
    with pytest.raises(ValueError, match=r"1 of 2 rows failed.*: p: NonFiniteLogits: NaN"), pipeline() as p:
        _ = p | beam.Create([Prompt(id="p", text="nan"), Prompt(id="q", text="fine")]) | step


@BOTH
@pytest.mark.parametrize("threshold_windowing", [None, FixedWindows(100)], ids=["windows of its own", "given windows"])
def test_a_threshold_counts_in_each_window(step: Any, threshold_windowing: Any) -> None:
    """1 of 10 prompts fails, and 1 of the 2 prompts in its own window."""
    job = beam.Pipeline(runner="FnApiRunner")
    rows = [TimestampedValue(text, place * 5) for place, text in enumerate(prompts(9, 1))]
    handled = step(threshold=0.2, threshold_windowing=threshold_windowing)
    _ = job | beam.Create(rows).with_output_types(str) | beam.WindowInto(FixedWindows(10)) | handled
    said = r"1 of 2 rows failed in the window \[40.*, 50|window.*1 / 2 = 0\.5 > 0\.2"
    ends(job, threshold_windowing is not None, said)


def stream(*texts: str) -> Any:
    """A prompt each ten seconds."""
    made = test_stream.TestStream()
    for place, text in enumerate(texts):
        made = made.add_elements([TimestampedValue(text, place * 10)]).advance_watermark_to(place * 10 + 10)
    return made.advance_watermark_to_infinity()


@BOTH
@pytest.mark.parametrize(("texts", "passes"), [(["fine", "nan"], True), (["fine", "fine", "nan", "nan"], False)])
def test_a_stream_has_its_threshold_in_each_window(step: Any, texts: list[str], passes: bool) -> None:
    job = beam.Pipeline(options=PipelineOptions(["--streaming"]))
    _ = job | stream(*texts) | beam.WindowInto(FixedWindows(20)) | step(threshold=0.5)
    ends(job, passes, r"2 of 2 rows failed in the window \[20|2 / 2 = 1\.0 > 0\.5")


@BOTH
def test_a_stream_in_the_global_window_takes_no_threshold_without_windows(step: Any) -> None:
    with pytest.raises(ValueError, match=r"add threshold_windowing=FixedWindows\(60\)|global windowing"):
        _ = beam.Pipeline(options=PipelineOptions(["--streaming"])) | stream("fine") | step(threshold=0.5)


def test_values_without_a_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="threshold=5: takes a share from 0 to 1; 1 never fails the job"):
        generate().with_exception_handling(threshold=5)
    with pytest.raises(ConfigError, match="main_tag and dead_letter_tag are both 'bad': they take two names"):
        generate().with_exception_handling("bad")


def test_rows_that_are_no_prompts_have_tags_and_a_threshold_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"prompt": "a"}, {"prompt": 3}]))
    with pipeline() as p:
        rows = p | ReadPrompts(f"{tmp_path}/*").with_exception_handling("read", "unreadable", threshold=0.5)
        check(rows.unreadable, lambda letters: len(letters) == 1)
    with pytest.raises(ValueError, match=r"1 of 2 rows failed.*rows\.jsonl"), pipeline() as p:
        _ = p | ReadPrompts(f"{tmp_path}/*").with_exception_handling(threshold=0.4)


def test_keyed_rows_of_a_type_have_tags_and_a_threshold_too() -> None:
    labels = Classify(["good", "bad"], "stand-in", open_client=PickyClient)
    with pipeline() as p:
        labelled = p | beam.Create([("a", "fine"), ("b", "nan")]) | labels.with_exception_handling(threshold=0.5)
        keys = (labelled.good | beam.Keys(), labelled.bad | "Failed" >> beam.Keys()) | beam.Flatten()
        check(keys, lambda found: Counter(found) == Counter("ab"))

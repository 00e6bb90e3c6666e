from __future__ import annotations

import io
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.elements.task_results import ContinuationScore, Embedded, Scored
from millrace.transforms.embed import Embed
from millrace.transforms.generate import Generate
from millrace.transforms.requests.retry_ids import RequestIds
from millrace.transforms.score import Score
from millrace.transforms.writing.output_rows import json_line, write_parquet
from tests.transforms.clients import PickyClient
from tests.transforms.running import check, counters
from tests.transforms.running import pipeline as running


def score(client: Any = PickyClient, **options: Any) -> Score:
    return Score("stand-in", open_client=client, **options)


def embed(client: Any = PickyClient, **options: Any) -> Embed:
    return Embed("stand-in", open_client=client, **options)


def test_a_row_is_scored_for_each_of_its_continuations() -> None:
    row = {"id": "a", "prompt": "is it so", "continuations": ["yes", "oh no", [1, 23]], "label": 0}
    with running() as p:

        def holds(rows: list[Scored]) -> bool:
            (scored,) = rows
            assert [each.continuation for each in scored.scores] == ["yes", "oh no", [1, 23]]
            assert [each.logprob for each in scored.scores] == [-3.0, -4.0, -3.0]
            assert [each.is_greedy for each in scored.scores] == [True, False, False]
            assert [each.num_tokens for each in scored.scores] == [1, 2, 2]
            assert scored.scores[1].token_logprobs == [-2.0, -2.0]
            assert (scored.id, scored.columns, scored.model) == ("a", {"label": 0}, "stand-in")
            return (scored.usage.prompt_tokens, scored.usage.completion_tokens) == (3 * 3 + 5, 0)

        check(p | beam.Create([row]) | score(), holds)


def test_one_continuation_may_be_a_string_and_its_column_may_have_another_name() -> None:
    rows = [Prompt(id="b", text="x", columns={"answer": "yes"})]
    with running() as p:
        scored = p | beam.Create(rows) | score(continuations_column="answer")
        check(scored, lambda found: [each.logprob for each in found[0].scores] == [-3.0])


@pytest.mark.parametrize("continuations", [None, [], 5, [5], ["a", None]])
def test_a_row_without_continuations_is_a_dead_letter(continuations: Any) -> None:
    row = {"id": "a", "prompt": "x", "continuations": continuations}
    with running() as p:
        _, dead = p | beam.Create([row]) | score().with_exception_handling()
        check(
            dead,
            lambda letters: [(each.id, each.error, each.row) for each in letters] == [("a", "InvalidRequest", row)],
        )


def test_keyed_rows_come_back_keyed_failed_or_not() -> None:
    rows = [(n, {"prompt": text, "continuations": "yes"}) for n, text in enumerate(["fine", "nan"])]
    with running() as p:
        scored, dead = p | beam.Create(rows) | score().with_exception_handling()
        check(scored | beam.Keys(), lambda keys: keys == [0], "scored")
        check(dead | "Failed" >> beam.Keys(), lambda keys: keys == [1], "dead letters")


def test_prompts_become_vectors() -> None:
    with running() as p:
        vectors = p | beam.Create(["one two", {"prompt": "three", "x": 1}]) | embed(pooling="mean", normalize=False)
        found = vectors | beam.Map(lambda each: (each.embedding, each.columns))
        check(found, lambda rows: sorted(rows, key=str) == [([1.0, 1.0, 0.0], {"x": 1}), ([2.0, 1.0, 0.0], {})])
    with pytest.raises(ConfigError, match="pooling='max': takes last or mean"):
        embed(pooling="max")


def test_tokens_are_counted() -> None:
    p = beam.Pipeline()
    _ = p | beam.Create(["one two", "x " * 2000]) | embed().with_exception_handling()
    counted = counters(p.run())
    assert (counted["requests"], counted["failures"], counted["prompt_tokens"]) == (2, 1, 2)


def test_each_task_has_its_own_ids() -> None:
    prompt, params = Prompt(text="x", columns={"continuations": ["yes"]}), SamplingParams()
    other = Prompt(text="x", columns={"continuations": ["no"]})
    tasks = [Generate("m"), Score("m"), Embed("m"), Embed("m", pooling="mean"), Embed("m", normalize=False)]
    ids = {RequestIds("j").of(prompt, params, each._task.id_parts(prompt)) for each in tasks}
    ids.add(RequestIds("j").of(other, params, Score("m")._task.id_parts(other)))
    assert len(ids) == 6
    assert RequestIds("j").of(prompt, params) in ids


SCORED = Scored(
    id="a",
    scores=[
        ContinuationScore(
            continuation=text, logprob=-1.5, is_greedy=True, num_tokens=1, token_ids=[3], token_logprobs=[-1.5]
        )
        for text in ("yes", [3])
    ],
    columns={"n": 1},
)
EMBEDDED = Embedded(id="b", embedding=[0.5, -0.25])


def test_elements_survive_their_coders() -> None:
    for element in (SCORED, EMBEDDED):
        coder = beam.coders.registry.get_coder(type(element))
        assert coder.decode(coder.encode(element)) == element
        assert coder.is_deterministic()


def test_rows_of_json_and_parquet() -> None:
    row = msgspec.json.decode(json_line(SCORED))
    assert row["scores"][0]["continuation"] == "yes"
    assert (row["id"], row["finish_reason"], row["columns"]) == ("a", "stop", {"n": 1})
    tables = {}
    for name, element in (("scored", SCORED), ("embedded", EMBEDDED)):
        stream = io.BytesIO()
        assert write_parquet([json_line(element)] * 2, stream) == 2
        tables[name] = pq.read_table(io.BytesIO(stream.getvalue())).to_pylist()[1]
    assert [each["continuation"] for each in tables["scored"]["scores"]] == ["yes", "[3]"]
    assert tables["scored"]["scores"][0]["token_logprobs"] == [-1.5]
    assert (tables["embedded"]["embedding"], tables["embedded"]["columns"]) == ([0.5, -0.25], "{}")

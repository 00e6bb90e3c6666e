"""Results are kept within bounds of memory and age, and given to the same work only."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from millrace.model_manager.manager.jobs import JobCounts
from millrace.model_manager.manager.results import KeptResults
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings


def request(name: str, prompt: int = 1, max_tokens: int = 5) -> Request:
    return Request(request_id=name, prompt_token_ids=[prompt], params=SamplingParams(max_tokens=max_tokens))


def output(name: str, tokens: int = 3) -> Output:
    return Output(name, [1] * tokens, FinishReason.LENGTH, Timings(0, 0, 0), prompt_tokens=1)


def test_a_result_is_found_by_model_id_prompt_and_parameters() -> None:
    kept = KeptResults(10_000, 60)
    kept.add("m", request("a"), output("a"), 0.0)
    assert kept.find("m", request("a")) == output("a")
    assert kept.find("other", request("a")) is None
    assert kept.find("m", request("b")) is None
    assert kept.find("m", request("a", prompt=2)) is None
    assert kept.find("m", request("a", max_tokens=6)) is None


def test_another_task_is_other_work() -> None:
    def asked(**fields: Any) -> Request:
        return Request("a", [1, 2, 3], SamplingParams(), **fields)

    tasks: list[dict[str, Any]] = [{"task": "score", "score_from": 1}, {"task": "score", "score_from": 2}]
    tasks += [{"task": "embed"}, {"task": "embed", "pooling": "mean"}, {"task": "embed", "normalize": False}]
    for task in tasks:
        kept = KeptResults(10_000, 60)
        kept.add("m", asked(**task, job="one", waited=3.0), output("a"), 0.0)
        assert [kept.find("m", asked(**other)) is not None for other in tasks] == [other is task for other in tasks]
        assert kept.find("m", asked()) is None


@pytest.mark.parametrize("id_length", [4, 32, 4000])
@pytest.mark.parametrize(("tokens", "tops", "vector"), [(3, 0, 0), (200, 0, 0), (100, 5, 0), (0, 0, 3072)])
def test_what_is_kept_takes_no_more_memory_than_the_bound(tokens: int, tops: int, vector: int, id_length: int) -> None:
    def made(name: str) -> Output:
        ids = [[1000 + at] * tops for at in range(tokens)]
        logprobs = Logprobs([0.5] * tokens, [True] * tokens, ids, [[float(at)] * tops for at in range(tokens)])
        fields = {"logprobs": logprobs if tops else None, "embedding": bytes(vector) or None}
        return structs.replace(output(name, 0), token_ids=[1000 + at for at in range(tokens)], **fields)

    tracemalloc.start()
    try:
        kept = KeptResults(2**18, 60)
        for index in range(1000):
            name = f"{index:0{id_length}x}"
            kept.add("model-0123456789ab", request(name), made(name), float(index))
        assert kept.find("model-0123456789ab", request(name)) == made(name)
        gc.collect()
        with_it = tracemalloc.get_traced_memory()[0]
        del kept
        taken = with_it - tracemalloc.get_traced_memory()[0]  # and not what other threads allocate
    finally:
        tracemalloc.stop()
    assert 2**18 * 0.6 < taken < 2**18 * 1.05


def test_old_results_expire() -> None:
    kept = KeptResults(10_000, 60)
    kept.add("m", request("a"), output("a"), 0.0)
    kept.add("m", request("b"), output("b"), 30.0)
    kept.expire(60.0)
    assert kept.find("m", request("a")) is None
    assert kept.find("m", request("b")) is not None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 200)), max_size=60), st.integers(0, 20_000))
def test_memory_never_exceeds_the_bound(additions: list[tuple[int, int]], bound: int) -> None:
    kept = KeptResults(bound, 60)
    for name, tokens in additions:
        kept.add("m", request(str(name)), output(str(name), tokens), 0.0)
        assert kept.size <= bound
    kept.expire(100.0)
    assert (kept.size, len(kept)) == (0, 0)


def test_the_number_of_jobs_counted_is_bounded() -> None:
    jobs = JobCounts()
    for index in range(1000):
        jobs.finished(structs.replace(request("a"), job=str(index)), output("a"))
    assert len(jobs.status()) == 256
    assert jobs.status()[-1].job == "999"


def test_tokens_of_a_job_are_counted_as_its_rows_tell_them() -> None:
    def counted(**fields: Any) -> tuple[int, int, int]:
        jobs = JobCounts()
        for name in ("a", "b", "c"):
            jobs.finished(structs.replace(request(name), family="a", **fields), output(name))
        (count,) = jobs.status()
        return count.finished, count.prompt_tokens, count.generated_tokens

    assert counted() == (1, 1, 9), "three answers to one prompt"
    assert counted(task="score") == (1, 3, 9), "each continuation is computed with its prompt"

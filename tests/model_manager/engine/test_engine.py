from __future__ import annotations

import itertools

import pytest

from millrace.model_manager.engine.interface import StepInput, StepOutput
from millrace.model_manager.wire.errors import InvalidRequest, PromptTooLong
from millrace.model_manager.wire.request import FinishReason, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.history_runner import (
    EOS,
    VOCAB_SIZE,
    EngineUnderTest,
    HistoryRunner,
    reference_tokens,
    request,
)


def test_prefill_and_decode_share_a_batch_within_the_token_budget() -> None:
    under_test = EngineUnderTest(max_num_batched_tokens=16)
    under_test.engine.add(request("short", max_tokens=8))
    under_test.step()
    under_test.engine.add(request("long", [1 + n % 20 for n in range(60)], max_tokens=2))
    under_test.finish()
    sizes = [[end - start for start, end in pairs(step)] for step in under_test.runner.steps]
    assert sizes[1] == [1, 15]
    assert max(map(sum, sizes)) == 16


def pairs(step: StepInput) -> list[tuple[int, int]]:
    return list(itertools.pairwise(step.query_starts.tolist()))


def test_an_end_of_sequence_token_stops_unless_it_is_to_be_ignored() -> None:
    prompt = next(p for n in range(200) if (p := [1, n % VOCAB_SIZE, n // VOCAB_SIZE]) and stops_soon(p))
    stopped, ignored = EngineUnderTest().run(
        Request("a", prompt, SamplingParams(max_tokens=20)), request("b", prompt, max_tokens=20)
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids[-1] == EOS
    assert stopped.stop_reason is None
    assert len(ignored.token_ids) == 20


def stops_soon(prompt: list[int]) -> bool:
    return EOS in reference_tokens(request("x", prompt, max_tokens=8), 256)


def test_a_stop_token_is_reported_as_the_reason() -> None:
    token = reference_tokens(request(max_tokens=4), 256)[3]
    (output,) = EngineUnderTest().run(request(max_tokens=20, stop_token_ids=[token]))
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason == token
    assert output.token_ids[-1] == token


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (Request("a", [], SamplingParams()), InvalidRequest, "no tokens"),
        (request(prompt=[VOCAB_SIZE]), InvalidRequest, f"0 to {VOCAB_SIZE - 1}"),
        (request(prompt=[-1]), InvalidRequest, "token ids -1"),
        (Request("a", [1], SamplingParams(), output_token_ids=[99]), InvalidRequest, "output"),
        (request(prompt=[1] * 256), PromptTooLong, "256 tokens.*at most 256"),
        (request(n=2), InvalidRequest, "n=2: an engine takes 1"),
        (request(stop=["x"]), InvalidRequest, "tokenizer.json"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_what_is_wrong(
    bad: Request, error: type[Exception], text: str
) -> None:
    under_test = EngineUnderTest()
    with pytest.raises(error, match=text):
        under_test.engine.add(bad)
    assert not under_test.engine.has_work()


def test_a_request_longer_than_the_cache_is_refused() -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=4, block_size=8))
    under_test.engine.add(request(prompt=[1] * 31, max_tokens=9))
    with pytest.raises(PromptTooLong, match=r"32 tokens.*at most 32"):
        under_test.engine.add(request("b", [1] * 32))
    assert len(under_test.finish()["a"].token_ids) == 1


def test_an_id_that_is_running_is_refused_and_the_running_one_goes_on() -> None:
    under_test = EngineUnderTest()
    under_test.engine.add(request())
    with pytest.raises(InvalidRequest, match="'a': is running"):
        under_test.engine.add(request())
    assert len(under_test.finish()) == 1
    under_test.outputs.clear()
    assert under_test.run(request())  # finished, so its id may come again


def test_positions_that_run_out_end_a_sequence_with_length() -> None:
    under_test = EngineUnderTest(HistoryRunner(max_model_len=20))
    (output,) = under_test.run(request(prompt=[1] * 5, max_tokens=100))
    assert (len(output.token_ids), output.finish_reason) == (15, FinishReason.LENGTH)


def test_a_sequence_alone_that_fills_the_cache_ends_with_length() -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=2, block_size=8))
    (output,) = under_test.run(request(max_tokens=100))
    assert (len(output.token_ids), output.finish_reason) == (13, FinishReason.LENGTH)
    assert under_test.engine.stats().preemptions == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_preempted_sequence_gets_the_same_tokens(prefix_caching: bool) -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=6, block_size=8), prefix_caching=prefix_caching)
    requests = [request(str(n), [n + 1] * 4, max_tokens=30, temperature=0.7) for n in range(3)]
    for asked, output in zip(requests, under_test.run(*requests), strict=True):
        assert output.token_ids == reference_tokens(asked, 48)
    assert under_test.engine.stats().preemptions > 0


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_an_urgent_request_has_its_token_two_steps_later_and_the_row_that_made_way_the_same_tokens(
    runs_ahead: bool,
) -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=64, runs_ahead=runs_ahead), max_num_batched_tokens=32)
    rows = [request(f"row {n}", [n + 1] * 4, max_tokens=40, temperature=0.7) for n in range(10)]
    asked = request("urgent", [9] * 5, max_tokens=3, priority=-1)
    for row in rows:
        under_test.engine.add(row)
    for _ in range(6):
        under_test.step()
    under_test.engine.add(asked)
    for _ in range(1 + runs_ahead):
        assert "urgent" not in under_test.progress
        under_test.step()
    assert len(under_test.progress["urgent"]) == 1
    outputs = under_test.finish()
    for each in (*rows, asked):
        assert outputs[each.request_id].token_ids == reference_tokens(each, 256)
    assert under_test.engine.stats().preemptions == 1


def test_a_request_that_brings_output_goes_on_after_it() -> None:
    whole = request(max_tokens=12, temperature=0.9, seed=7)
    expected = reference_tokens(whole, 256)
    resumed = Request("a", whole.prompt_token_ids, whole.params, output_token_ids=expected[:5])
    under_test = EngineUnderTest()
    (output,) = under_test.run(resumed)
    assert output.token_ids == expected
    assert under_test.progress["a"] == expected[5:-1]


def test_a_request_that_brings_all_its_output_is_answered_without_running() -> None:
    tokens = reference_tokens(request(max_tokens=3), 256)
    under_test = EngineUnderTest()
    done = Request("a", [3, 1, 4], SamplingParams(max_tokens=3, ignore_eos=True), output_token_ids=tokens)
    (output,) = under_test.run(done)
    assert (output.token_ids, output.finish_reason) == (tokens, FinishReason.LENGTH)
    assert under_test.runner.steps == []


def test_an_unseeded_retry_draws_the_same_tokens_in_any_company() -> None:
    alone = EngineUnderTest().run(request("a", max_tokens=20, temperature=1.5))[0]
    company = EngineUnderTest().run(*(request(name, max_tokens=20, temperature=1.5) for name in "zyxa"))
    assert company[-1].token_ids == alone.token_ids
    assert company[0].token_ids != alone.token_ids


def test_abort_frees_the_blocks_and_answers_with_the_tokens_so_far() -> None:
    under_test = EngineUnderTest(max_num_seqs=1)
    under_test.engine.add(request("running", max_tokens=50))
    under_test.engine.add(request("waiting", max_tokens=50))
    for _ in range(4):
        under_test.step()
    for request_id in ("running", "waiting", "unknown", "running"):
        under_test.engine.abort(request_id)
    assert under_test.engine.has_work()
    under_test.step()
    assert not under_test.engine.has_work()
    running, waiting = under_test.outputs["running"], under_test.outputs["waiting"]
    assert running.token_ids == reference_tokens(request(max_tokens=4), 256)
    assert waiting.token_ids == []
    assert {running.finish_reason, waiting.finish_reason} == {FinishReason.ABORT}
    under_test.finish()


def test_a_deadline_ends_a_request_with_what_it_has_and_one_without_a_token_fails() -> None:
    under_test = EngineUnderTest(max_num_seqs=1)
    for name in ("running", "waiting"):
        under_test.engine.add(request(name, max_tokens=50, deadline=5.0))
    under_test.engine.add(request("patient", max_tokens=2, deadline=60.0))
    for _ in range(4):
        under_test.clock.now += 1.0
        under_test.step()
    under_test.clock.now += 1.0
    under_test.step()
    running = under_test.outputs["running"]
    assert running.token_ids == reference_tokens(request(max_tokens=4), 256)
    assert running.finish_reason is FinishReason.DEADLINE
    assert under_test.failures == {"waiting": "DeadlineExceeded"}
    under_test.finish()
    assert len(under_test.outputs["patient"].token_ids) == 2


def test_time_spent_before_the_engine_and_tokens_brought_along_count() -> None:
    under_test = EngineUnderTest()
    params = SamplingParams(deadline=5.0, ignore_eos=True)
    under_test.engine.add(Request("late", [1, 2], params, waited=6.0))
    under_test.engine.add(Request("resumed", [1, 2], params, waited=6.0, output_token_ids=[3, 4]))
    under_test.finish()
    assert under_test.failures == {"late": "DeadlineExceeded"}
    assert under_test.outputs["resumed"].token_ids == [3, 4]
    assert under_test.runner.steps == []


def test_a_prompt_seen_before_reuses_its_blocks_but_for_the_last_token() -> None:
    under_test = EngineUnderTest()
    prompt = [1 + n % 20 for n in range(24)]
    first, again, longer = [
        under_test.run(request(name, asked, max_tokens=2))[0]
        for name, asked in (("a", prompt), ("b", prompt), ("c", [*prompt, 9]))
    ]
    assert [first.cached_tokens, again.cached_tokens, longer.cached_tokens] == [0, 16, 24]
    stats = under_test.engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (73, 40)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_answers_to_one_prompt_share_its_blocks_even_without_prefix_caching(prefix_caching: bool) -> None:
    under_test = EngineUnderTest(max_num_batched_tokens=64, prefix_caching=prefix_caching)
    prompt = [1 + n % 20 for n in range(30)]
    for name, family in (("a", "a"), ("a#1", "a"), ("a#2", "a"), ("b", "")):
        asked = request(name, prompt, max_tokens=3, temperature=1.0)
        under_test.engine.add(Request(name, prompt, asked.params, family=family))
    outputs = under_test.finish()
    assert [outputs[name].cached_tokens for name in ("a", "a#1", "a#2")] == [0, 24, 24]
    assert outputs["b"].cached_tokens == (24 if prefix_caching else 0)
    for name in outputs:
        assert outputs[name].token_ids == reference_tokens(request(name, prompt, max_tokens=3, temperature=1.0), 256)


def test_a_generated_beginning_is_reused_by_the_next_turn() -> None:
    under_test = EngineUnderTest()
    (first,) = under_test.run(request("a", [5] * 10, max_tokens=15))
    (second,) = under_test.run(request("b", [5] * 10 + first.token_ids + [6], max_tokens=2))
    assert second.cached_tokens == 24


def test_logits_that_are_not_finite_fail_that_request_alone_and_its_blocks_are_not_reused() -> None:
    shared = [7] * 16
    under_test = EngineUnderTest(HistoryRunner(broken=lambda history: history[16:18] == [2, 2]))
    under_test.run(request("before", [*shared, 1], max_tokens=2))
    for asked in (request("bad", [*shared, 2, 2], max_tokens=9), request("good", [*shared, 3], max_tokens=9)):
        under_test.engine.add(asked)
    under_test.finish()
    assert under_test.failures == {"bad": "NonFiniteLogits"}
    assert under_test.outputs["good"].token_ids == reference_tokens(request("x", [*shared, 3], max_tokens=9), 256)
    (after,) = under_test.run(request("after", [*shared, 1], max_tokens=2))
    assert after.cached_tokens == 0


def test_a_prompt_computed_in_chunks_is_not_cached_before_its_logits_are_seen() -> None:
    under_test = EngineUnderTest(HistoryRunner(broken=lambda history: len(history) == 40), max_num_batched_tokens=16)
    under_test.engine.add(request("bad", [8] * 40))
    under_test.finish()
    (after,) = under_test.run(request("after", [8] * 30, max_tokens=1))
    assert after.cached_tokens == 0


def test_what_the_runner_raises_passes_through() -> None:
    class OutOfMemory(HistoryRunner):
        def execute(self, step: StepInput) -> StepOutput:
            raise MemoryError(f"{len(step.token_ids)} tokens")

    under_test = EngineUnderTest(OutOfMemory())
    under_test.engine.add(request())
    with pytest.raises(MemoryError, match="3 tokens"):
        under_test.step()


def test_timings_count_from_the_managers_receipt() -> None:
    under_test = EngineUnderTest(max_num_seqs=1)
    under_test.engine.add(Request("a", [1], SamplingParams(max_tokens=2, ignore_eos=True), waited=10.0))
    under_test.engine.add(Request("b", [1], SamplingParams(max_tokens=1, ignore_eos=True)))
    while under_test.engine.has_work():
        under_test.clock.now += 1.0
        under_test.step()
    a, b = under_test.outputs["a"].timings, under_test.outputs["b"].timings
    assert (a.queued, a.first_token, a.finished) == (11.0, 11.0, 12.0)
    assert (b.queued, b.first_token, b.finished) == (3.0, 3.0, 3.0)


def test_stats_count_what_happened() -> None:
    under_test = EngineUnderTest(max_num_seqs=1)
    for name in "ab":
        under_test.engine.add(request(name, max_tokens=4))
    under_test.clock.now += 2.0
    under_test.step()
    stats = under_test.engine.stats()
    assert (stats.running, stats.waiting, stats.steps, stats.generated_tokens) == (1, 1, 1, 1)
    assert (stats.blocks_used, stats.blocks_total) == (1, 64)
    assert (stats.batch, stats.blocks_held) == (1.0, 1.0)
    assert stats.tokens_per_s == 0.5
    assert stats.rss_mb > 0

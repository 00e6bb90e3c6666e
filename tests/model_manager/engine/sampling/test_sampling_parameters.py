"""Every sampling parameter through the compiled kernel and through torch, and against transformers' processors.

Traps that engines have fallen into, and the tests that show that this one has not:

2 resuming after preemption: test_engine.test_a_preempted_sequence_gets_the_same_tokens and
  test_penalties_and_log_probabilities_survive_preemption_and_another_engine here · 3 what penalties cover:
  test_repetition_covers_the_prompt_and_the_others_the_output_alone · 4 stop strings across tokens and 5 partial UTF-8:
  test_stopping.py · 7 raw log-probabilities: test_log_probabilities_are_those_of_the_untouched_logits · 8 company:
  test_sampler.test_a_rows_token_does_not_depend_on_its_company · 9 min_tokens against the end of sequence:
  test_min_tokens_keeps_endings_away_and_then_no_more, test_a_stop_string_before_min_tokens_is_passed_over · 11 NaN:
  test_sampler.test_rows_that_are_not_finite_are_told_apart_and_disturb_no_other, test_nan_at_a_banned_token_is_found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

import millrace.model_manager.store
from millrace.model_manager.engine.sampling.logit_rows import SamplingRows, mask_words
from millrace.model_manager.engine.sampling.sampler import Sampler, Samples, launch_by_torch
from millrace.model_manager.engine.sampling.token_rules import bad_word_tokens, token_rules
from millrace.model_manager.engine.sampling.torch_sampling import filtered_weights, processed
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.request import FinishReason, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.history_runner import EOS, EngineUnderTest, HistoryRunner, reference_tokens
from tests.model_manager.engine.sampling_cases import Case, case, indexed, rows_of

FOLDER = Path(millrace.model_manager.store.__file__).parent / "embedded" / EMBEDDED_MODEL
VOCAB = 3000
EITHER = pytest.mark.parametrize(
    "sample", [Sampler().sample, lambda *each: launch_by_torch(*each).get()], ids=["compiled", "torch"]
)
Sample = Callable[[torch.Tensor, SamplingRows], Samples]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def random_logits(count: int, scale: float = 2.0, vocab: int = VOCAB) -> torch.Tensor:
    values = np.random.default_rng(count).normal(size=(count, vocab)) * scale
    return torch.from_numpy(values.astype(np.float32))


WARPERS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "top_k": ({"top_k": 40}, [transformers.TopKLogitsWarper(40)]),
    "top_p": ({"top_p": 0.8}, [transformers.TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.05}, [transformers.MinPLogitsWarper(0.05)]),
    "typical_p": ({"typical_p": 0.7}, [transformers.TypicalLogitsWarper(0.7)]),
    "all": (
        {"top_k": 300, "top_p": 0.95, "min_p": 0.002, "typical_p": 0.9},
        [
            transformers.TopKLogitsWarper(300),
            transformers.TopPLogitsWarper(0.95),
            transformers.MinPLogitsWarper(0.002),
            transformers.TypicalLogitsWarper(0.9),
        ],
    ),
}


@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_what_is_kept_and_how_likely_it_is_equals_transformers(name: str, scale: float) -> None:
    params, warpers = WARPERS[name]
    logits = random_logits(6, scale)
    ids = torch.zeros((6, 1), dtype=torch.int64)
    scores = transformers.TemperatureLogitsWarper(0.7)(ids, logits.clone())
    for warper in warpers:
        scores = warper(ids, scores)
    expected = scores.softmax(dim=-1)
    rows = rows_of([case(temperature=0.7, **params)] * 6)
    weights = filtered_weights(logits, logits.max(dim=-1).values, rows.settings)
    found = weights / weights.sum(dim=-1, keepdim=True)
    assert ((found > 0) == (expected > 0)).all()
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize(("scale", "vocab"), [(0.0, 100), (0.5, 20_000), (4.0, 20_000), (4.0, 700)])
def test_the_compiled_kernel_draws_what_torch_draws(name: str, scale: float, vocab: int) -> None:
    logits = random_logits(24, scale, vocab)
    history = np.random.default_rng(1).integers(0, vocab, 40).tolist()
    cases = [
        case(history[:20], history[20:], n, temperature=1.0, repetition_penalty=1.0 + 0.1 * n, **WARPERS[name][0])
        for n in range(24)
    ]
    compiled, plain = Sampler().sample(logits, rows_of(cases)), launch_by_torch(logits, rows_of(cases)).get()
    differing = sum(one != other for one, other in zip(compiled.token_ids, plain.token_ids, strict=True))
    assert differing <= 1  # sums in another order may move a limit


def test_repetition_covers_the_prompt_and_the_others_the_output_alone() -> None:
    logits = random_logits(1)
    prompt, output = [5, 6, 6], [7, 8, 8, 8]
    expected = transformers.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    given = processed(logits, rows_of([case(prompt, output, repetition_penalty=1.3)]))
    assert torch.allclose(given, expected)
    changed = processed(logits, rows_of([case(prompt, output, presence_penalty=0.5, frequency_penalty=0.25)])) - logits
    assert changed[0].nonzero().flatten().tolist() == [7, 8]
    assert changed[0, [7, 8]].tolist() == pytest.approx([-0.75, -1.25], abs=1e-5)


@EITHER
def test_penalties_count_what_was_generated(sample: Sample) -> None:
    logits = torch.zeros(1, 8)
    logits[0, 2], logits[0, 3] = 3.0, 2.0
    cases: list[tuple[dict[str, Any], list[int], int]] = [
        ({"frequency_penalty": 0.4}, [2, 2], 2),
        ({"frequency_penalty": 0.4}, [2, 2, 2], 3),
        ({"presence_penalty": 1.5}, [2], 3),
        ({"repetition_penalty": 1.4}, [2], 2),
        ({"repetition_penalty": 1.6}, [2], 3),
    ]
    for params, output, token in cases:
        assert sample(logits, rows_of([case([], output, **params)])).token_ids == [token]
    assert sample(logits, rows_of([case([2], [], presence_penalty=2.0, frequency_penalty=2.0)])).token_ids == [2]


@EITHER
def test_a_bias_is_added_after_penalties_and_masks_come_last(sample: Sample) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    cases: list[tuple[dict[str, Any], int]] = [
        ({"logit_bias": {0: 3.5}}, 0),
        ({"logit_bias": {3: -100}}, 2),
        ({"allowed_token_ids": [0, 1]}, 1),
        ({"allowed_token_ids": [0, 1], "logit_bias": {0: 1.5, 2: 100}}, 0),
        ({"repetition_penalty": 2.0, "logit_bias": {3: 0.5}}, 2),
    ]
    for params, token in cases:
        assert sample(logits, rows_of([case([3], [], **params)])).token_ids == [token]


@EITHER
def test_min_tokens_keeps_endings_away_and_then_no_more(sample: Sample) -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0]])
    params: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": [2]}
    for output, token in (([], 3), ([3], 3), ([3, 3], 1)):
        assert sample(logits, rows_of([case([0], output, **params)], eos=[1])).token_ids == [token]
    assert sample(logits, rows_of([case([0], [], ignore_eos=True, **params)], eos=[1])).token_ids == [1]


def test_a_stop_string_before_min_tokens_is_passed_over() -> None:
    ids = tokenizer().encode("one two three two four").ids
    rules = StopRules(frozenset(), tokenizer())
    first, again = (
        next(n for n in range(1, len(ids) + 1) if tokenizer().decode(ids[:n]).count("two") == times) for times in (1, 2)
    )
    for min_tokens, end in ((0, first), (first, first), (first + 1, again)):
        conditions = rules.conditions(SamplingParams(stop=("two",), min_tokens=min_tokens), 99)
        endings = [conditions.after(token, n + 1) for n, token in enumerate(ids)]
        assert next(n for n, ending in enumerate(endings, 1) if ending is not None) == end


def test_bad_words_are_banned_where_they_would_end() -> None:
    words = bad_word_tokens(("capital", "Mexico City"), tokenizer())
    texts = {tokenizer().decode(list(word)) for word in words}
    assert {"capital", " capital", "Mexico City", " Mexico City"} == texts
    rules = token_rules(SamplingParams(bad_words=("Mexico City",)), (), 10**6, tokenizer())
    assert rules is not None
    for word in bad_word_tokens(("Mexico City",), tokenizer()):
        assert word[-1] in rules.banned(np.array([3, *word[:-1]], np.int32)).tolist()
        assert word[-1] not in rules.banned(np.array([*word[:-1], 3], np.int32)).tolist()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=12), st.lists(st.integers(0, 3), max_size=5)
)
def test_a_token_is_banned_after_the_rest_of_a_forbidden_sequence(words: list[list[int]], output: list[int]) -> None:
    class Numbers:
        def encode(self, text: str, **_: object) -> Any:
            return SimpleNamespace(ids=[] if text[0] == " " else [*map(int, text)])

    rules = token_rules(SamplingParams(bad_words=tuple("".join(map(str, each)) for each in words)), (), 10, Numbers())
    banned = set() if rules is None else {*rules.banned(np.array(output, np.int32)).tolist()}
    assert banned == {token for token in range(4) if any([*output, token][-len(word) :] == word for word in words)}


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"logit_bias": {24: 1.0}}, "logit_bias: has token id 24"),
        ({"allowed_token_ids": [3, 99]}, "allowed_token_ids: has token id 99"),
        ({"bad_words": ["x"]}, r"bad_words: .*tokenizer\.json"),
    ],
)
def test_what_the_model_cannot_serve_is_refused_by_name(params: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        EngineUnderTest().engine.add(Request("a", [1], SamplingParams.parse(params)))


def test_rules_that_leave_no_token_fail_that_request_alone() -> None:
    under_test = EngineUnderTest()
    impossible = SamplingParams(allowed_token_ids=(EOS,), min_tokens=2, max_tokens=5)
    under_test.engine.add(Request("impossible", [1, 2], impossible))
    under_test.engine.add(Request("fine", [1, 2], SamplingParams(max_tokens=5, ignore_eos=True)))
    under_test.finish()
    assert under_test.failures == {"impossible": "InvalidRequest"}
    assert len(under_test.outputs["fine"].token_ids) == 5


@EITHER
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("nan")])
def test_nan_at_a_banned_token_is_found(sample: Sample, bad: float) -> None:
    logits = torch.tensor([[1.0, bad, 2.0], [1.0, 5.0, 2.0]])
    samples = sample(logits, rows_of([case(allowed_token_ids=[0, 2])] * 2))
    assert samples.finite == [False, True]
    assert samples.token_ids[1] == 2


@EITHER
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_log_probabilities_are_those_of_the_untouched_logits(sample: Sample, temperature: float) -> None:
    logits = random_logits(3)
    logits[2, 5:] = -torch.inf
    before = logits.clone()
    edits: dict[str, Any] = {"repetition_penalty": 2.0, "logit_bias": {9: 50.0}, "top_k": 3, "temperature": temperature}
    cases = [case([1], [2], n, logprobs=count, **edits) for n, count in enumerate([4, 0])]
    samples = sample(logits, rows_of([*cases, case(logprobs=8)]))
    assert torch.equal(logits, before)
    scores = logits.log_softmax(dim=-1)
    assert samples.token_ids[0] == 9
    first, second, third = (samples.logprobs[row] for row in range(3))
    assert first.logprobs == pytest.approx([float(scores[0, 9])], abs=1e-4)
    assert first.greedy == [False]
    assert first.top_token_ids == [scores[0].topk(4).indices.tolist()]
    assert first.top_logprobs[0] == pytest.approx(scores[0].topk(4).values.tolist(), abs=1e-4)
    assert (len(second), second.top_token_ids, second.top_logprobs) == (1, [], [])
    assert third.greedy == [True]
    assert third.top_logprobs[0][5:] == [-9999.0] * 3
    assert len(set(third.top_token_ids[0])) == 8


def test_frequencies_follow_the_processed_distribution() -> None:
    logits = random_logits(1, 1.0, 40)
    params: dict[str, Any] = {"temperature": 0.9, "top_k": 25, "top_p": 0.95, "min_p": 0.02, "logit_bias": {3: 1.0}}
    row = rows_of([case(**params)])
    edited = processed(logits, row)
    weights = filtered_weights(edited, edited.max(dim=-1).values, row.settings)[0].double().numpy()
    count = 20_000
    plain = case(**{name: value for name, value in params.items() if name != "logit_bias"})
    drawn = Sampler().sample(edited.expand(count, -1).contiguous(), indexed(plain, np.arange(count))).token_ids
    found, expected = np.bincount(drawn, minlength=40), weights / weights.sum() * count
    assert not found[expected == 0].any()
    kept = expected > 0
    chi_square = ((found[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert chi_square < kept.sum() + 6 * np.sqrt(2 * kept.sum())


PROCESSED: dict[str, Any] = {
    "max_tokens": 20,
    "temperature": 0.8,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "min_p": 0.01,
    "ignore_eos": True,
    "logprobs": 2,
}


def test_penalties_and_log_probabilities_survive_preemption_and_another_engine() -> None:
    asked = [Request(str(n), [n + 1] * 4, SamplingParams.parse(PROCESSED)) for n in range(3)]
    alone = [EngineUnderTest().run(request)[0] for request in asked]
    crowded = EngineUnderTest(HistoryRunner(num_blocks=6, block_size=8))
    outputs = crowded.run(*asked)
    assert crowded.engine.stats().preemptions > 0
    assert [output.token_ids for output in outputs] == [reference_tokens(request, 256) for request in asked]
    assert [output.logprobs for output in outputs] == [output.logprobs for output in alone]
    before = alone[0]
    assert before.logprobs is not None
    assert len(before.logprobs) == len(before.token_ids) == 20
    resumed = Request(
        "0",
        asked[0].prompt_token_ids,
        asked[0].params,
        output_token_ids=before.token_ids[:7],
        output_logprobs=before.logprobs.part(0, 7),
    )
    (after,) = EngineUnderTest().run(resumed)
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)


def test_progress_carries_log_probabilities_for_a_successor() -> None:
    engine = EngineUnderTest().engine
    engine.add(Request("a", [1, 2], SamplingParams.parse(PROCESSED | {"max_tokens": 3})))
    parts = []
    while engine.has_work():
        result = engine.step()
        parts += [result.new_logprobs["a"]] if result.new_token_ids else []
    (output,) = result.outputs
    assert output.finish_reason is FinishReason.LENGTH
    assert output.logprobs is not None
    assert Logprobs.join(parts) == output.logprobs.part(0, 2)


def test_tokens_without_the_log_probabilities_that_are_asked_for_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="log-probabilities"):
        EngineUnderTest().engine.add(Request("a", [1], SamplingParams(logprobs=1), output_token_ids=[2]))


def masked(cases: list[Case], allowed: npt.NDArray[np.bool_]) -> SamplingRows:
    """Rows that may have what `allowed` [rows, vocabulary] says, and one more that may have anything."""
    bits = np.zeros((len(allowed), 32 * mask_words(allowed.shape[1])), bool)
    bits[:, : allowed.shape[1]] = allowed
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)[::-1]  # in another order than the rows
    places = np.append(np.arange(len(allowed))[::-1], -1)
    return replace(rows_of(cases), masks=np.ascontiguousarray(masks), mask_rows=places)


@EITHER
@pytest.mark.parametrize("vocab", [31, 700, 3001])
def test_a_mask_leaves_what_it_allows_and_the_log_probabilities_as_they_are(sample: Sample, vocab: int) -> None:
    logits, rng = random_logits(9, vocab=vocab), np.random.default_rng(vocab)
    allowed = rng.random((8, vocab)) < 0.2
    allowed[np.arange(8), rng.integers(0, vocab, 8)] = True
    cases = [case(seed=n, temperature=float(n % 2), logprobs=1) for n in range(9)]
    given, free = sample(logits, masked(cases, allowed)), sample(logits, rows_of(cases))
    assert all(allowed[row, token] for row, token in enumerate(given.token_ids[:8]))
    greedy = logits[:8].masked_fill(torch.from_numpy(~allowed), -torch.inf).argmax(dim=-1)
    assert given.token_ids[:8:2] == greedy[::2].tolist()
    assert given.token_ids[8] == free.token_ids[8]
    scores = logits.log_softmax(dim=-1)
    for row, token in enumerate(given.token_ids):
        assert given.logprobs[row].logprobs == pytest.approx([float(scores[row, token])], abs=1e-4)
        assert given.logprobs[row].top_token_ids == free.logprobs[row].top_token_ids


@EITHER
def test_a_mask_and_a_rows_own_rules_hold_together_and_leave_nothing_or_something(sample: Sample) -> None:
    logits = torch.arange(40.0)[None].repeat(3, 1)
    allowed = np.zeros((2, 40), bool)
    allowed[0, [3, 35]] = allowed[1, 5] = True
    cases = [case(logit_bias={3: 100}), case(temperature=1.0, allowed_token_ids=[4]), case()]
    samples = sample(logits, masked(cases, allowed))
    assert samples.possible == [True, False, True]
    assert (samples.token_ids[0], samples.token_ids[2]) == (3, 39)
    assert samples.finite == [True] * 3

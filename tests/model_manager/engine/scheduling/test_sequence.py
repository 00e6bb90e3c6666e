from __future__ import annotations

import pytest

from millrace.model_manager.engine.scheduling.admission import admitted
from millrace.model_manager.engine.scheduling.sequence import Sequence, sampling_seed
from millrace.model_manager.engine.scheduling.stopping import StopConditions, StopRules
from millrace.model_manager.wire.errors import InvalidRequest, PromptTooLong
from millrace.model_manager.wire.request import FinishReason, Request
from millrace.model_manager.wire.sampling import SamplingParams


def sequence(prompt: list[int], output: list[int] | None = None, max_tokens: int = 4, waited: float = 0.0) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    request = Request("a", prompt, params, output_token_ids=output or [], waited=waited)
    return Sequence(request, StopConditions(params, max_tokens, {0}, None), now=5.0)


@pytest.mark.parametrize(
    ("output", "kept", "reason"), [([8, 0, 8], [8, 0], FinishReason.STOP), ([8] * 6, [8] * 4, FinishReason.LENGTH)]
)
def test_output_of_an_earlier_engine_may_end_it_and_nothing_comes_after_the_end(
    output: list[int], kept: list[int], reason: FinishReason
) -> None:
    finished = sequence([7], output).output(5.0)
    assert (finished.token_ids, finished.finish_reason) == (kept, reason)


def test_what_a_sequence_never_reached_is_timed_as_its_end() -> None:
    seq = sequence([7], [0], waited=2.0)
    assert seq.output(now=8.0).timings.queued == 5.0
    assert seq.output(now=8.0).timings.finished == 5.0


def test_an_unseeded_request_has_a_seed_of_its_id_and_a_seeded_one_its_own() -> None:
    assert sampling_seed(Request("a", [1], SamplingParams(seed=3))) == 3
    seeds = {name: sampling_seed(Request(name, [1], SamplingParams())) for name in ("a", "b", "\ud800")}
    assert len(set(seeds.values())) == 3
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    assert seeds["a"] == 1702698405120146464


def accept(request: Request, max_len: int = 8, known: tuple[str, ...] = ()) -> Sequence:
    rules = StopRules(frozenset(), None)
    return admitted(request, vocab_size=2, max_len=max_len, stop_rules=rules, known=known, now=0.0)


def test_a_prompt_must_leave_one_position_unless_nothing_is_generated() -> None:
    accept(Request("a", [1] * 7, SamplingParams()))
    accept(Request("a", [1] * 8, SamplingParams(), task="embed"))
    with pytest.raises(PromptTooLong, match="prompt of 8 tokens"):
        accept(Request("a", [1] * 8, SamplingParams()))
    with pytest.raises(PromptTooLong, match="score of 9 tokens"):
        accept(Request("a", [1] * 9, SamplingParams(), task="score", score_from=1))


def test_what_can_never_run_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="token ids 0 to 2"):
        accept(Request("a", [0, 2], SamplingParams()))
    with pytest.raises(InvalidRequest, match="running already"):
        accept(Request("a", [0], SamplingParams()), known=("a",))
    for first in (0, 2):
        with pytest.raises(InvalidRequest, match=f"score_from={first}: takes 1 to 1"):
            accept(Request("a", [1, 1], SamplingParams(), task="score", score_from=first))

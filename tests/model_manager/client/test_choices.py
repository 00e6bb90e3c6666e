from __future__ import annotations

from concurrent.futures import Future

import pytest

from millrace.model_manager.client.choices import choice_requests, choice_seed, submit_choices
from millrace.model_manager.client.deltas import Delta, OnDelta
from millrace.model_manager.client.joined import sibling_id
from millrace.model_manager.wire.errors import NonFiniteLogits
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings

_SECOND, _THIRD = (sibling_id("a", index) for index in (1, 2))


def request(n: int = 3, **params: object) -> Request:
    return Request("a", [1, 2], SamplingParams.parse({"n": n, **params}), job="j")


def answer(text: str) -> Output:
    return Output("a", [1], FinishReason.STOP, Timings(0, 0, 0), 2, text=text)


class Sender:
    """Keeps what was sent; `fails_at` raises instead of sending that one."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.futures: dict[str, Future[Output]] = {}
        self._fails_at = fails_at

    def __call__(self, request: Request, on_delta: OnDelta | None = None) -> Future[Output]:
        if on_delta is not None:
            on_delta(Delta(0, request.request_id, []))
        if len(self.futures) == self._fails_at:
            raise NonFiniteLogits("NaN")
        future = self.futures[request.request_id] = Future()
        return future

    def cancelled(self) -> list[str]:
        return [name for name, future in self.futures.items() if future.cancelled()]


def test_the_first_is_what_it_would_be_alone_and_the_others_have_seeds_of_their_own() -> None:
    first, *others = choice_requests(request(seed=5, prompt_logprobs=2))
    assert (first.request_id, first.params) == ("a", SamplingParams(seed=5, prompt_logprobs=2))
    assert [each.request_id for each in others] == [_SECOND, _THIRD]
    assert all(each.params.prompt_logprobs is None for each in others)
    assert len({each.params.seed for each in (first, *others)}) == 3
    assert {each.family for each in (first, *others)} == {"a"}
    assert {each.job for each in (first, *others)} == {"j"}


def test_without_a_seed_it_is_the_ids_that_differ() -> None:
    requests = choice_requests(request())
    assert [each.params.seed for each in requests] == [None] * 3
    assert len({each.request_id for each in requests}) == 3


def test_the_largest_seed_gives_seeds_in_range() -> None:
    seeds = {choice_seed(2**63 - 1, index) for index in range(64)}
    assert len(seeds) == 64
    for seed in seeds:
        SamplingParams(seed=seed)


def test_the_answers_are_joined_in_order_whichever_ends_first() -> None:
    send = Sender()
    joined = submit_choices(send, request())
    for name in (_THIRD, "a", _SECOND):
        assert not joined.done()
        send.futures[name].set_result(answer(name))
    result = joined.result(timeout=0)
    assert result.text == "a"
    assert [choice.text for choice in result.choices] == ["a", _SECOND, _THIRD]


@pytest.mark.parametrize("ended", [[], ["a"], ["a", _SECOND]])
def test_when_one_fails_all_fail_and_the_others_are_cancelled(ended: list[str]) -> None:
    send = Sender()
    joined = submit_choices(send, request())
    for name in ended:
        send.futures[name].set_result(answer(name))
    send.futures[_THIRD].set_exception(NonFiniteLogits("NaN"))
    with pytest.raises(NonFiniteLogits):
        joined.result(timeout=0)
    assert send.cancelled() == [name for name in ("a", _SECOND) if name not in ended]


def test_the_deltas_of_each_answer_have_its_number() -> None:
    given: list[Delta] = []
    submit_choices(Sender(), request(), given.append)
    assert [(delta.index, delta.text) for delta in given] == [(0, "a"), (1, _SECOND), (2, _THIRD)]


def test_two_that_fail_are_one_failure() -> None:
    send = Sender()
    joined = submit_choices(send, request(n=2))
    send.futures["a"].set_running_or_notify_cancel()
    send.futures[_SECOND].set_exception(NonFiniteLogits("first"))
    send.futures["a"].set_exception(NonFiniteLogits("second"))
    with pytest.raises(NonFiniteLogits, match="first"):
        joined.result(timeout=0)


def test_cancelling_cancels_all() -> None:
    send = Sender()
    joined = submit_choices(send, request())
    assert joined.cancel()
    assert send.cancelled() == ["a", _SECOND, _THIRD]


def test_one_that_cannot_be_sent_takes_those_back_that_were() -> None:
    send = Sender(fails_at=2)
    with pytest.raises(NonFiniteLogits):
        submit_choices(send, request())
    assert send.cancelled() == ["a", _SECOND]


def test_nothing_more_is_sent_once_one_has_failed() -> None:
    class Failing(Sender):
        def __call__(self, request: Request, on_delta: OnDelta | None = None) -> Future[Output]:
            future = super().__call__(request, on_delta)
            future.set_exception(NonFiniteLogits("at once"))
            return future

    send = Failing()
    joined = submit_choices(send, request(n=9))
    assert isinstance(joined.exception(timeout=0), NonFiniteLogits)
    assert list(send.futures) == ["a"]

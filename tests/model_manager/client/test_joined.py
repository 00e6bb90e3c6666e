"""No id of a caller's is ever one that the client derives. Times of several requests begin with the first one."""

from concurrent.futures import Future

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.client.joined import callers_id, sibling_id, submit_joined
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings

_IDS = st.text(st.sampled_from("a#1\x1f"), max_size=6)


@given(_IDS, _IDS, st.integers(1, 63))
def test_a_callers_id_is_refused_or_is_no_siblings(mine: str, other: str, index: int) -> None:
    try:
        accepted = callers_id(mine)
    except InvalidRequest:
        return
    assert accepted == mine
    assert mine != sibling_id(other, index)


@given(st.lists(st.tuples(_IDS.filter(lambda name: "\x1f" not in name), st.integers(0, 63)), unique=True))
def test_siblings_of_different_families_or_places_have_different_ids(siblings: list[tuple[str, int]]) -> None:
    assert len({sibling_id(*sibling) for sibling in siblings}) == len(siblings)


def test_the_first_of_a_family_has_the_callers_id() -> None:
    assert sibling_id("a", 0) == "a"


def test_an_id_that_cannot_be_a_callers_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"request_id='a\\x1f1': takes text without U\+001F"):
        callers_id("a\x1f1")


def test_the_latency_of_each_request_begins_when_the_first_is_submitted() -> None:
    now, to_send, to_answer = 100.0, 3.0, 1.0
    output = Output("", [1], FinishReason.STOP, Timings(0, 0, 0), 2)

    def send(_request: Request) -> Future[Output]:
        nonlocal now
        now += to_send  # it waits for a credit
        future: Future[Output] = Future()
        future.set_result(msgspec.structs.replace(output, latency=to_send + to_answer))
        return future

    requests = [Request(name, [1], SamplingParams()) for name in "abc"]
    answers = submit_joined(send, requests, list, clock=lambda: now).result(timeout=0)
    assert [answer.latency for answer in answers] == [4.0, 7.0, 10.0]

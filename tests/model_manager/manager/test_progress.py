"""A client that asks for it gets each token of its requests once, in order, whoever dies or attaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import Progress
from millrace.model_manager.wire.request import Request
from tests.model_manager.manager.router_world import World, request


@dataclass
class Listening(World):
    """A world whose clients keep the tokens that come before the answer."""

    heard: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[int, str], list[float]] = field(default_factory=dict)

    def _client_takes(self, client: int, message: object) -> None:
        super()._client_takes(client, message)
        if not isinstance(message, Progress):
            return
        for tokens in message.tokens:
            assert self.owed[client][tokens.request_id], "tokens of a request that nobody waits for"
            so_far = self.heard.setdefault((client, tokens.request_id), [])
            assert tokens.offset == len(so_far), "tokens are missing, or come twice"
            so_far += tokens.token_ids
            if tokens.logprobs is not None:
                self.logprobs.setdefault((client, tokens.request_id), []).extend(tokens.logprobs.logprobs)


def listening(*clients: int) -> Listening:
    made = Listening()
    for client in clients:
        made.join(client)
        made.open(client)
    made.load()
    return made


def streamed(name: str, **params: Any) -> Request:
    return msgspec.structs.replace(request(name, **params), stream=True)


def test_a_request_that_does_not_ask_is_sent_nothing_before_its_answer() -> None:
    made = listening(1)
    made.submit(1, request("quiet"), streamed("loud"))
    for token in (3, 4):
        made.progress("quiet", token)
        made.progress("loud", token)
    assert made.heard == {(1, "loud"): [3, 4]}


def test_tokens_are_sent_with_the_report_that_brings_them() -> None:
    made = listening(1)
    made.submit(1, streamed("a"))
    for count in range(1, 4):
        made.progress("a", count)
        assert len(made.heard[1, "a"]) == count


def test_who_attaches_gets_all_tokens_from_the_start() -> None:
    made = listening(1, 2, 3)
    made.submit(1, request("a"))
    made.progress("a", 3)
    made.submit(2, streamed("a"))
    made.progress("a", 4)
    made.heard[3, "a"] = [3]
    made.submit(3, msgspec.structs.replace(streamed("a"), output_token_ids=[3]))
    made.progress("a", 5)
    assert made.heard == {(2, "a"): [3, 4, 5], (3, "a"): [3, 4, 5]}


def test_a_stream_goes_on_in_the_next_engine_without_a_token_twice() -> None:
    made = listening(1)
    made.submit(1, streamed("a"))
    made.progress("a", 3)
    made.die()
    made.load()
    made.progress("a", 4)
    assert made.heard == {(1, "a"): [3, 4]}


def test_the_longest_of_what_clients_bring_to_a_new_manager_counts() -> None:
    made = Listening()
    for client in (1, 2, 3):
        made.join(client)
        made.open(client)
    for client, known in ((1, [3]), (2, [3, 4, 5]), (3, [])):
        made.heard[client, "a"] = list(known)
        made.submit(client, msgspec.structs.replace(streamed("a"), output_token_ids=known))
    made.load()
    assert made.engine.tokens == {"a": [3, 4, 5]}
    made.progress("a", 6)
    assert made.heard == {(client, "a"): [3, 4, 5, 6] for client in (1, 2, 3)}


def test_log_probabilities_come_with_their_tokens_from_the_start_too() -> None:
    made = listening(1, 2)
    made.submit(1, streamed("a", logprobs=0))
    for token in (3, 4):
        made.report(StepReport(progress={"a": [token]}, logprobs={"a": Logprobs([-float(token)], [True])}))
    made.submit(2, streamed("a", logprobs=0))
    assert made.logprobs == {(1, "a"): [-3.0, -4.0], (2, "a"): [-3.0, -4.0]}


def test_tokens_that_an_ending_may_replace_are_not_streamed_to_who_attaches() -> None:
    made = listening(1, 2)
    made.submit(1, request("a", constraint={"json": True}))
    made.submit(2, streamed("a", constraint={"json": True}))
    made.progress("a", 3)
    assert not made.heard


def test_a_cancelled_stream_ends_and_its_id_can_be_streamed_again() -> None:
    made = listening(1)
    made.submit(1, streamed("a"))
    made.progress("a", 3)
    made.cancel(1, "a")
    made.progress("a", 4)
    assert made.heard.pop((1, "a")) == [3]
    made.submit(1, streamed("a"))
    assert made.heard == {(1, "a"): [3, 4]}


@pytest.mark.parametrize("cleanly", [True, False])
def test_a_client_that_is_gone_is_sent_nothing(cleanly: bool) -> None:
    made = listening(1, 2)
    made.submit(1, streamed("a"))
    made.submit(2, streamed("a"))
    made.leave(1, cleanly=cleanly)
    made.progress("a", 3)
    assert made.heard == {(2, "a"): [3]}


@given(st.lists(st.tuples(st.sampled_from("sspppdcf"), st.integers(1, 2), st.sampled_from("ab")), max_size=40))
def test_whatever_happens_each_stream_is_the_beginning_of_its_answer(events: list[tuple[str, int, str]]) -> None:
    made, token = listening(1, 2), 10
    for kind, client, name in events:
        running = bool(made.engines) and made.engine.ready and name in made.held(0)
        if kind == "s" and not made.owed[client][name]:
            made.heard.pop((client, name), None)
            made.submit(client, streamed(name))
        elif kind == "p" and running:
            token += 1
            made.progress(name, token)
            waiting = [to for to in (1, 2) if made.owed[to][name]]
            assert all(made.heard[to, name] == made.engine.tokens[name] for to in waiting)
        elif kind == "d" and made.engines and made.engine.ready:
            made.die()
            if made.engines:
                made.load()
        elif kind == "c" and made.owed[client][name]:
            made.cancel(client, name)
        elif kind == "f" and running:
            made.finish(name)
    for (client, name), heard in made.heard.items():
        answers = [each for to, each in made.answers if (to, each.request_id) == (client, name)]
        if answers and not made.owed[client][name]:
            assert answers[-1].token_ids[: len(heard)] == heard

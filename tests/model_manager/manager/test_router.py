"""The router on each event that may befall a request."""

from __future__ import annotations

import pytest

from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import Cancel, CloseModel, Submit
from millrace.model_manager.wire.request import Failure, FinishReason, Output
from millrace.model_manager.wire.transport import ProtocolError
from tests.model_manager.manager.router_world import KEY, SETTINGS, World, names, opened, output, request, world


def test_the_first_open_starts_one_engine_and_everybody_is_told_when_it_is_ready() -> None:
    made = world(1, 2)
    assert made.starts == 1
    assert made.ready == {1, 2}


def test_a_second_client_attaches_to_a_request_that_runs() -> None:
    made = world(1, 2)
    made.submit(1, request("a"))
    made.submit(2, request("a"))
    made.finish("a")
    assert names(made.answers) == [(1, "a"), (2, "a")]


def test_a_retry_is_answered_from_what_is_kept() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.finish("a")
    made.submit(1, request("a"))
    assert names(made.answers) == [(1, "a"), (1, "a")]
    assert not made.engine.tokens


def test_an_id_that_stands_for_another_prompt_fails_and_the_first_goes_on() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.submit(1, request("a", prompt=5))
    made.finish("a")
    kinds = [type(answer).__name__ for _, answer in made.answers]
    assert kinds == ["Failure", "Output"]


def test_a_kept_result_is_not_the_answer_to_another_prompt() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.finish("a")
    made.submit(1, request("a", prompt=5))
    assert "a" in made.engine.tokens


def test_a_new_engine_goes_on_with_the_tokens_there_are() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.progress("a", 3)
    made.progress("a", 4)
    made.die()
    made.load()
    assert made.engine.tokens == {"a": [3, 4]}
    made.finish("a")
    assert [answer.token_ids for _, answer in made.answers if isinstance(answer, Output)] == [[3, 4, 9]]


def test_a_new_engine_gets_the_log_probabilities_of_those_tokens() -> None:
    made = world(1)
    made.submit(1, request("a"))
    parts = [Logprobs([-0.5], [True], [[3]], [[-0.5]]), Logprobs([-1.5], [False], [[5]], [[-0.25]])]
    for token, logprobs in zip((3, 4), parts, strict=True):
        made.report(StepReport(progress={"a": [token]}, logprobs={"a": logprobs}))
    made.die()
    made.load()
    assert made.engine.tokens == {"a": [3, 4]}
    assert made.engine.logprobs == {"a": Logprobs([-0.5, -1.5], [True, False], [[3], [5]], [[-0.5], [-0.25]])}


def test_a_model_is_given_up_after_too_many_deaths_in_a_row() -> None:
    made = world(1)
    for _ in range(SETTINGS.max_restarts):
        made.die()
    assert not made.failures
    made.die()
    assert [error.kind for _, error in made.failures] == ["EngineLost"]


def test_a_death_while_loading_that_another_engine_would_die_too_fails_the_model_at_once() -> None:
    made = opened(1)
    made.die(load_failed=True)
    assert [error.kind for _, error in made.failures] == ["ModelLoadFailed"]


def test_half_of_a_constrained_output_is_no_answer_when_its_time_is_up() -> None:
    made = world(1)
    made.submit(1, request("a", deadline=10.0, constraint={"regex": "[a-z]+"}))
    made.progress("a", 3)
    made.die()
    made.pass_time(10.1)
    ((_, answer),) = made.answers
    assert isinstance(answer, Failure)
    assert answer.error.kind == "DeadlineExceeded"


def test_what_no_engine_has_ends_when_its_time_is_up_with_what_it_has() -> None:
    made = world(1)
    for name in ("begun", "new", "patient"):
        made.submit(1, request(name, deadline=None if name == "patient" else 10.0))
    made.progress("begun", 3)
    made.die()
    made.pass_time(9.9)
    assert not made.answers
    made.pass_time(0.2)
    late, begun = sorted((answer for _, answer in made.answers), key=lambda answer: type(answer).__name__)
    assert isinstance(late, Failure)
    assert (late.request_id, late.error.kind) == ("new", "DeadlineExceeded")
    assert isinstance(begun, Output)
    assert (begun.token_ids, begun.finish_reason) == ([3], FinishReason.DEADLINE)
    made.load()
    assert made.engine.tokens == {"patient": []}


def test_what_ends_without_an_engine_brings_its_tokens_log_probabilities() -> None:
    made = world(1)
    made.submit(1, request("a", deadline=10.0, logprobs=0))
    found = Logprobs(logprobs=[-0.5], greedy=[True])
    made.report(StepReport(progress={"a": [3]}, logprobs={"a": found}))
    made.die()
    made.pass_time(11.0)
    ((_, answer),) = made.answers
    assert isinstance(answer, Output)
    assert (answer.token_ids, answer.logprobs) == ([3], found)


def test_what_an_engine_has_it_ends_itself() -> None:
    made = world(1)
    made.submit(1, request("a", deadline=10.0))
    made.pass_time(11.0)
    assert not made.answers
    made.report(StepReport(outputs=[output("a", [4], FinishReason.DEADLINE)]))
    assert names(made.answers) == [(1, "a")]


def test_an_engine_is_given_the_most_urgent_first() -> None:
    made = opened(1)
    made.submit(1, *(request(str(n), priority=-n) for n in range(12)))
    made.load()
    assert sorted(made.engine.tokens, key=int) == [str(n) for n in range(4, 12)]


def test_a_later_open_tries_a_failed_model_again() -> None:
    made = opened(1)
    made.cannot_load()
    made.open(1)
    made.load()
    made.submit(1, request("a"))
    made.finish("a")
    assert made.starts == 2
    assert names(made.answers) == [(1, "a")]


def test_a_submit_that_crosses_with_the_news_of_failure_gets_no_second_answer() -> None:
    made = world(1)
    made.router.stop_model(KEY)
    made.router.submit(1, Submit(KEY, [request("a")]), made.now)
    made.settle()
    assert not made.answers
    assert len(made.failures) == 1


def test_a_request_to_a_model_that_was_not_opened_is_a_breach_of_protocol() -> None:
    made = World()
    made.join(1)
    with pytest.raises(ProtocolError):
        made.router.submit(1, Submit(KEY, [request("a")]), 0.0)


@pytest.mark.parametrize("num_engines", [1, 3])
def test_a_request_that_kills_its_engine_fails_alone(num_engines: int) -> None:
    made = world(1, num_engines=num_engines)
    made.submit(1, request("poison"), *(request(f"r{number}") for number in range(5)))
    while any(engine.tokens or not engine.ready for engine in made.engines.values()):
        for index, engine in list(made.engines.items()):
            if not engine.ready:
                made.load(index)
            elif "poison" in engine.tokens:
                made.die(index)
            elif engine.tokens:
                made.finish(next(iter(engine.tokens)), index)
    failed = [answer for _, answer in made.answers if isinstance(answer, Failure)]
    assert [(answer.request_id, answer.error.kind) for answer in failed] == [("poison", "EngineKiller")]
    assert len(made.answers) == 6
    assert made.starts == num_engines + SETTINGS.max_deaths_per_request + 1


def test_what_an_engine_has_that_can_do_no_more_goes_on_at_another() -> None:
    made = world(1, num_engines=2)
    made.submit(1, request("a"), request("b"))
    given_up = made.holder("a")
    made.progress("a", 3, index=given_up)
    made.cannot_load(given_up)
    assert made.holder("a") != given_up
    assert made.engines[1 - given_up].tokens["a"] == [3]
    (model,) = made.router._models.values()
    assert not any(entry.deaths for entry in model._requests.entries.values()), "no request is to blame for it"
    made.finish_all()
    assert sorted(names(made.answers)) == [(1, "a"), (1, "b")]


def test_requests_that_come_further_on_each_engine_are_not_suspected() -> None:
    made = world(1)
    made.submit(1, request("a"), request("b"))
    for _ in range(SETTINGS.max_restarts):
        made.progress("a")
        made.progress("b")
        made.die()
        made.load()
        assert set(made.engine.tokens) == {"a", "b"}


def test_requests_whose_tokens_were_not_reported_yet_survive_as_many_deaths_as_a_request_may_have() -> None:
    made = world(1)
    made.submit(1, *(request(name) for name in "abc"))
    for _ in range(SETTINGS.max_deaths_per_request):
        made.die()
        made.load()
    assert set(made.engine.tokens) == {"a"}, "they are suspects, which run one at a time"
    made.finish_all()
    assert [type(answer) for _, answer in made.answers] == [Output] * 3


def test_the_requests_of_a_dead_client_wait_for_a_retry_and_are_cancelled_then() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), request("b"))
    made.leave(1, cleanly=False)
    made.pass_time(SETTINGS.orphan_grace - 1)
    made.submit(2, request("a"))
    made.pass_time(2)
    assert made.engine.cancelled == {"b"}


def test_a_client_may_ask_for_longer_though_no_longer_than_answers_are_kept() -> None:
    made = world(1)
    for client, grace in ((2, SETTINGS.orphan_grace + 5), (3, 1e9), (4, 0.5)):
        made.join(client)
        made.open(client, grace)
    made.submit(2, request("a"))
    made.submit(3, request("b"))
    made.submit(4, request("c"))
    for client in (2, 3, 4):
        made.leave(client, cleanly=False)
    made.pass_time(SETTINGS.orphan_grace + 1)
    assert made.engine.cancelled == {"c"}
    made.pass_time(5)
    assert made.engine.cancelled == {"c", "a"}
    made.pass_time(SETTINGS.results_kept)
    assert made.engine.cancelled == {"c", "a", "b"}


def test_answers_that_come_after_their_clients_death_are_there_as_long_as_it_may_come_back() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.leave(1, cleanly=False)
    made.finish("a")
    made.pass_time(SETTINGS.orphan_grace - 1)
    made.join(2)
    made.open(2)
    made.submit(2, request("a"))
    assert names(made.answers) == [(2, "a")]
    made.leave(2, cleanly=True)
    made.pass_time(SETTINGS.linger)
    assert not made.engines
    assert made.router.is_done(made.now)


def test_answers_that_a_client_had_as_it_died_are_there_as_long_as_it_may_come_back() -> None:
    """It may have written none of them."""
    made = world(1)
    made.submit(1, request("a"))
    made.finish("a")
    made.leave(1, cleanly=False)
    made.pass_time(SETTINGS.orphan_grace - 1)
    assert made.engines
    made.join(2)
    made.open(2)
    made.submit(2, request("a"))
    assert names(made.answers) == [(1, "a"), (2, "a")]
    made.leave(2, cleanly=False)
    made.pass_time(SETTINGS.orphan_grace + SETTINGS.linger)
    assert not made.engines, "the job did not come back"
    assert made.router.is_done(made.now)


def test_a_client_that_closes_cancels_at_once() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), request("b"))
    made.submit(2, request("b"))
    made.leave(1, cleanly=True)
    assert made.engine.cancelled == {"a"}


def test_cancelling_answers_at_once_and_a_retry_meanwhile_goes_on() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.progress("a", 3)
    made.cancel(1, "a")
    made.submit(1, request("a"))
    made.finish("a")  # the engine's end of the cancelled one
    made.finish("a")
    reasons = [answer.finish_reason for _, answer in made.answers if isinstance(answer, Output)]
    assert reasons == [FinishReason.ABORT, FinishReason.LENGTH]


def test_answers_under_one_id_come_in_the_order_of_its_submits() -> None:
    """The client takes the first for the submit that it has cancelled."""
    made = world(1, 2)
    made.submit(2, request("a"))
    made.router.submit(1, Submit(KEY, [request("a", prompt=5)]), 0.0)
    made.router.cancel(1, Cancel(KEY, ["a"]), 0.0)
    made.router.submit(1, Submit(KEY, [request("a")]), 0.0)
    made.owed[1]["a"] += 2
    made.finish("a")
    assert [type(answer).__name__ for client, answer in made.answers if client == 1] == ["Failure", "Output"]


def test_a_cancelled_request_is_not_given_to_the_next_engine() -> None:
    made = world(1)
    made.submit(1, request("a"), request("b"))
    made.cancel(1, "a")
    made.die()
    made.load()
    assert set(made.engine.tokens) == {"b"}


def test_an_idle_model_is_unloaded_and_comes_back_with_the_next_request() -> None:
    made = world(1)
    made.pass_time(SETTINGS.idle_timeout + 1)
    assert not made.engines
    made.submit(1, request("a"))
    made.load()
    made.finish("a")
    assert names(made.answers) == [(1, "a")]


def test_the_manager_is_done_when_its_last_client_has_been_gone_for_a_while() -> None:
    made = world(1)
    made.leave(1, cleanly=True)
    made.pass_time(SETTINGS.linger - 1)
    assert not made.router.is_done(made.now)
    assert made.engines
    made.pass_time(2)
    assert made.router.is_done(made.now)
    assert not made.engines


def test_a_model_that_another_has_replaced_ends_as_its_last_client_closes_it() -> None:
    made = world(1, 2)
    made.router.close_model(1, CloseModel(KEY, replaced=True), made.now)
    made.pass_time(0.2)
    assert made.engines, "the other client uses it"
    made.router.close_model(2, CloseModel(KEY, replaced=True), made.now)
    made.pass_time(0.2)
    assert not made.engines


def test_an_observer_keeps_nothing_up() -> None:
    made = world(1)
    made.router.connect(9, observer=True)
    made.leave(1, cleanly=True)
    made.pass_time(SETTINGS.linger + 1)
    assert made.router.is_done(made.now)


def test_one_client_has_all_credits_and_two_that_work_share_them() -> None:
    made = world(1)
    assert made.limits == {1: 8}
    made.join(2)
    made.open(2)
    made.submit(1, *(request(f"a{index}") for index in range(8)))
    made.submit(2, *(request(f"b{index}") for index in range(2)))
    made.pass_time(0.1)
    assert made.limits == {1: 4, 2: 4}


def test_status_counts_each_request_once_for_its_job() -> None:
    made = world(1, 2)
    made.submit(1, request("a"))
    made.submit(2, request("a"))
    made.finish("a")
    (job,) = made.router.jobs()
    assert (job.job, job.finished, job.generated_tokens) == ("job", 1, 1)


def test_a_full_engine_gets_what_is_more_urgent_at_once() -> None:
    made = world(1, 2)
    made.submit(1, *(request(f"row {index}") for index in range(50)))
    held = made.held(0)
    made.submit(2, request("as urgent as rows"), request("urgent", priority=-1))
    assert made.held(0) == held | {"urgent"}

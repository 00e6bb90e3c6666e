"""Counts of a model's answered requests: each once, whoever sent it and whichever engine answered it."""

from __future__ import annotations

import msgspec

from millrace.model_manager.manager.counts import EndedModels, ModelCounts
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.errors import ModelDoesNotFit
from millrace.model_manager.wire.messages import CloseModel, OpenModel
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.request_counts import BOUNDS, RequestCounts
from millrace.model_manager.wire.status import EndedModel, EngineStats, EngineTotals, ModelStatus
from millrace.model_manager.wire.timings import Timings
from tests.model_manager.manager.router_world import CONFIG, KEY, SETTINGS, World, request, world

BETWEEN = "inter_token_latency_seconds"


def status(made: World) -> ModelStatus:
    (model,) = made.router.models({})
    return model


def counts(made: World, source: str = "job") -> RequestCounts:
    return {str(name): found for name, found in status(made).requests.items()}[source]


def number(found: RequestCounts, name: str = "e2e_request_latency_seconds") -> int:
    return sum(found.histograms[name].counts)


def finished(made: World, name: str, tokens: int, timings: Timings) -> None:
    index = made.holder(name)
    del made.engines[index].tokens[name]
    made.report(StepReport(outputs=[Output(name, [9] * tokens, FinishReason.STOP, timings, prompt_tokens=3)]), index)


def test_a_result_is_counted_with_its_times_from_the_managers_receipt() -> None:
    made = world(1)
    made.submit(1, request("a"))
    made.now += 7.5
    finished(made, "a", 5, Timings(queued=0.5, first_token=3.0, finished=7.0))
    seen = counts(made)
    assert seen.answers == {"stop": 1}
    totals = {name: each.total for name, each in seen.histograms.items()}
    assert totals == {
        "time_to_first_token_seconds": 3.0,
        "inter_token_latency_seconds": 4.0,
        "request_time_per_output_token_seconds": 1.0,
        "e2e_request_latency_seconds": 7.5,
        "request_queue_time_seconds": 0.5,
        "request_prefill_time_seconds": 2.5,
        "request_decode_time_seconds": 4.0,
        "request_inference_time_seconds": 6.5,
        "request_prompt_tokens": 3,
        "request_generation_tokens": 5,
    }
    assert seen.histograms[BETWEEN].counts[BOUNDS[BETWEEN].index(1.0)] == 4 == number(seen, BETWEEN)


def test_a_result_without_tokens_has_no_first_one() -> None:
    made = world(1)
    made.submit(1, request("a"))
    finished(made, "a", 0, Timings(queued=0.5, first_token=0.0, finished=7.0))
    assert number(counts(made), "time_to_first_token_seconds") == 0 == number(counts(made), BETWEEN)
    assert counts(made).histograms["request_prefill_time_seconds"].total == 6.5


def test_engines_are_counted_together_and_their_deaths_take_nothing_away() -> None:
    made = world(1, num_engines=2)
    made.submit(1, *(request(f"{n}", n) for n in range(8)))
    assert made.held(0)
    assert made.held(1)
    for index in (0, 1):
        made.finish(sorted(made.held(index))[0], index)
    made.die(0)
    assert number(counts(made)) == 2
    made.load(0)
    made.finish_all()
    assert number(counts(made)) == 8
    assert status(made).restarts == 1


def test_the_first_token_of_an_answer_that_went_on_in_another_engine_is_not_known() -> None:
    """Its times come from the last engine, and its tokens from both."""
    made = world(1)
    for engine_dies in (False, True):
        made.submit(1, request(f"{engine_dies}"))
        if engine_dies:
            made.die(0)
            made.load(0)
        made.finish_all()
        assert number(counts(made)) == 1 + engine_dies
        assert number(counts(made), "time_to_first_token_seconds") == 1


def test_counters_of_engines_never_fall_as_engines_die_or_are_unloaded() -> None:
    made = world(1, num_engines=2)
    for index in (0, 1):
        made.report(StepReport(stats=EngineStats(generated_tokens=100, grammars_compiled=3, running=2)), index)
    made.die(0)
    assert (status(made).stats.generated_tokens, status(made).stats.grammars_compiled) == (200, 6)
    made.load(0)
    made.report(StepReport(stats=EngineStats(generated_tokens=7, grammar_seconds=0.5)), 0)
    assert status(made).stats.generated_tokens == 207
    made.pass_time(100)  # nobody asks: its engines are unloaded
    assert status(made).state == "idle"
    assert status(made).stats == EngineStats(generated_tokens=207, grammars_compiled=6, grammar_seconds=0.5)


def test_counters_stay_when_a_model_ends_and_go_on_when_it_is_opened_again() -> None:
    made = world(1)

    def answer_one(name: str) -> None:
        made.submit(1, request(name))
        made.finish_all()
        made.report(StepReport(stats=EngineStats(generated_tokens=100, running=2)))
        made.die()
        made.load(0)

    def end() -> EndedModel:
        made.leave(1, cleanly=True)
        made.pass_time(100)
        assert not made.router.models({})
        (ended,) = made.router.ended()
        return ended

    answer_one("a")
    first = end()
    assert (first.key, first.model, first.restarts) == (KEY, CONFIG.model, 1)
    assert first.stats == EngineTotals(generated_tokens=100)
    assert number(first.requests["job"]) == 1
    made.join(1)
    made.open(1)
    assert not made.router.ended(), "each counter is told once"
    assert status(made).stats == EngineStats(generated_tokens=100)
    assert (number(counts(made)), status(made).restarts) == (1, 1)
    made.load(0)
    answer_one("b")
    second = end()
    assert (second.stats.generated_tokens, number(second.requests["job"]), second.restarts) == (200, 2, 2)


def test_a_models_name_stays_when_it_is_opened_again_with_a_slash_at_its_end() -> None:
    router, names = Router(SETTINGS, 0.0, cores=6), []
    for client, slash in enumerate(("/", "", "/")):
        config = msgspec.structs.replace(CONFIG, model=f"gs://bucket/folder{slash}")
        router.connect(client, observer=False)
        router.open_model(client, OpenModel(config, "/"), 0.0)
        names += [model.model for model in router.models({})]
        router.model(config.key).cannot_load(0, ModelDoesNotFit("no").info(), 0.0)
        router.close_model(client, CloseModel(config.key), 0.0)
        router.disconnect(client, 0.0)
        router.tick(1000.0)
        names += [model.model for model in router.ended()]
    assert names == ["gs://bucket/folder"] * 6


def test_of_many_models_that_ended_the_latest_are_remembered() -> None:
    ended = EndedModels()
    for number in range(1000):
        ended.keep(f"{number}", ModelCounts("m"))
    kept = [each.key for each in ended.status()]
    assert kept == [f"{number}" for number in range(1000)][-len(kept) :]
    assert len(kept) == 16


def test_a_servers_requests_and_all_others_are_counted_apart() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), msgspec.structs.replace(request("b", 1), served=True))
    made.submit(2, msgspec.structs.replace(request("c", 2), served=True))
    made.finish_all()
    assert (number(counts(made, "job")), number(counts(made, "server_answers"))) == (1, 2)


def test_what_two_clients_wait_for_or_ask_for_again_counts_once_and_what_is_cancelled_not_at_all() -> None:
    made = world(1, 2)
    made.submit(1, request("a"), request("b", 1))
    made.submit(2, msgspec.structs.replace(request("a"), served=True))
    made.cancel(1, "b")
    made.finish_all()
    made.submit(2, request("a"))
    assert list(status(made).requests) == ["job"]
    assert number(counts(made)) == 1


def test_credits_are_told_as_they_are_given_and_used() -> None:
    made = world(1, 2)
    made.submit(1, *(request(f"{n}", n) for n in range(3)))
    made.submit(2, request("0", 0))
    made.pass_time(0.1)
    model = status(made)
    assert model.credits_given == sum(made.limits.values()) > 0
    assert (model.credits_used, model.outstanding) == (4, 3), "one request is asked for twice"
    made.finish_all()
    assert status(made).credits_used == 0

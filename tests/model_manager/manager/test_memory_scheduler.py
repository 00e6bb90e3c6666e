"""The models in memory: which is admitted, which is evicted, and what one that waits is told."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.model_manager.manager.memory_account import MACHINE
from millrace.model_manager.manager.memory_scheduler import (
    Admit,
    Decision,
    Drain,
    EndDrain,
    Evict,
    MemoryScheduler,
    ModelUse,
    Refuse,
    ResizeCache,
)
from tests.model_manager.manager.memory_world import GIB, IDLE, LATER, WORKS, memory, request
from tests.searches import runs


def full(*keys: str, of: MemoryScheduler | None = None) -> MemoryScheduler:
    """A memory with these models in it."""
    made = of or memory()
    for key in keys:
        made.ask(request(key), 0.0)
    assert made.decide({}, 0.0) == [Admit(key) for key in keys]
    return made


def test_models_are_admitted_as_long_as_there_is_memory() -> None:
    made = full("a", "b")
    made.ask(request("c"), 0.0)
    assert made.decide({"a": WORKS, "b": WORKS}, 1.0) == []
    assert made.waits_for("c") == "1 GiB, 0 GiB are free; in memory: a, b"
    made.release("a")
    assert made.decide({"b": WORKS}, 2.0) == [Admit("c")]
    assert not made.is_waited_for


def test_a_model_that_asks_again_for_more_is_given_what_it_asked_for_last() -> None:
    made = full("a", of=memory(3.0))
    made.ask(request("b", 1.0), 0.0)
    made.ask(request("b", 2.5), 0.0)
    assert made.decide({"a": WORKS}, 1.0) == []
    assert made.waits_for("b") == "2.5 GiB, 2 GiB are free; in memory: a"


def test_who_waits_for_long_is_told_once_a_wait() -> None:
    made = full("a", "b")
    made.ask(request("c"), 0.0)
    assert made.take_long_waits(5.0) == []
    assert made.take_long_waits(11.0) == ["c"]
    assert made.take_long_waits(12.0) == []


def test_the_least_recently_used_model_without_work_makes_memory() -> None:
    made = full("a", "b", "c", of=memory(3.0))
    made.ask(request("d"), 0.0)
    used = {"a": dataclasses.replace(WORKS, last_used=1.0), "b": dataclasses.replace(IDLE, last_used=3.0)}
    loaded = used | {"c": dataclasses.replace(IDLE, last_used=2.0)}
    assert made.decide(loaded, LATER) == [Evict("c"), Admit("d")]


def test_no_more_models_go_than_must_and_only_from_the_place_that_is_full() -> None:
    made = memory(2.0, gpu=1.0)
    for each in (request("on gpu", places=("gpu",)), request("a"), request("b")):
        made.ask(each, 0.0)
    made.decide({}, 0.0)
    made.ask(request("c"), 0.0)
    loaded = {key: dataclasses.replace(IDLE, last_used=at) for at, key in enumerate(("on gpu", "a", "b"))}
    assert made.decide(loaded, LATER) == [Evict("a"), Admit("c")]


def test_nobody_overtakes_a_model_that_waits_for_the_same_place() -> None:
    made = full("a", of=memory(2.0, gpu=1.0))
    made.ask(request("large", 2.0), 0.0)
    made.ask(request("small"), 0.0)
    made.ask(request("elsewhere", places=("gpu",)), 0.0)
    assert made.decide({"a": WORKS}, 1.0) == [Admit("elsewhere")]
    assert made.waits_for("small") == "its turn: other models came before it"
    assert made.decide({"a": IDLE}, LATER) == [Evict("a"), Admit("large")]


def test_a_model_that_a_client_opens_goes_before_those_that_come_back_for_a_while() -> None:
    made = full("a", of=memory(1.0))
    made.ask(request("back"), 0.0)
    made.ask(request("opened"), 10.0, is_opening=True)
    assert made.decide({"a": WORKS}, 5.0) == []
    assert made.decide({"a": IDLE}, 15.0) == [Evict("a"), Admit("opened")]
    made.ask(request("opened later"), 61.0, is_opening=True)
    assert made.decide({"opened": IDLE}, 62.0) == [Evict("opened"), Admit("back")]


@pytest.mark.parametrize(
    "stays",
    [
        dataclasses.replace(IDLE, last_used=LATER - 0.1),
        dataclasses.replace(IDLE, has_served=False, ready_since=LATER - 1),
        dataclasses.replace(IDLE, is_pinned=True),
        ModelUse(works=True),
    ],
    ids=["used a moment ago", "loaded and not used yet", "pinned", "loading"],
)
def test_a_model_does_not_go_at_once_when_it(stays: ModelUse) -> None:
    made = full("a", "b")
    made.ask(request("c"), 0.0)
    assert made.decide({"a": stays, "b": WORKS}, LATER - 1) in ([], [Drain("b")])
    assert Evict("a") not in made.decide({"a": stays, "b": WORKS}, LATER)


def test_a_model_with_work_leaves_after_its_turn_the_one_loaded_first_before_others() -> None:
    made = full("a", "b")
    made.ask(request("c"), 0.0)
    loaded = {"a": dataclasses.replace(WORKS, ready_since=5.0), "b": dataclasses.replace(WORKS, ready_since=4.0)}
    assert made.decide(loaded, 8.0) == []
    assert made.decide(loaded, 20.0) == [Drain("b")]
    assert made.decide(loaded, 21.0) == [], "one is enough, and it is told once"
    loaded["b"] = dataclasses.replace(loaded["b"], works=False, last_used=22.0)
    assert made.decide(loaded, 22.0) == [Evict("b"), Admit("c")], "requests that came since do not hold it"


def test_a_turn_is_longer_by_as_much_as_a_models_jobs_weigh_more() -> None:
    for share, least, turn in ((3.0, 1.0, 30.0), (1.0, 3.0, 10.0), (1.0, 0.25, 40.0)):
        made = full("a", of=memory(1.0))
        made.ask(request("b"), 0.0, share=least)
        loaded = {"a": dataclasses.replace(WORKS, share=share)}
        assert made.decide(loaded, turn - 0.1) == []
        assert made.decide(loaded, turn) == [Drain("a")]


def test_a_turn_is_not_longer_for_a_small_share_in_another_place() -> None:
    made = memory(1.0, gpu=1.0)
    for key, places in (("a", (MACHINE,)), ("small", ("gpu",))):
        made.ask(request(key, places=places), 0.0)
    made.decide({}, 0.0)
    made.ask(request("b"), 0.0)
    made.ask(request("small too", places=("gpu",)), 0.0, share=0.1)
    loaded = {"a": WORKS, "small": dataclasses.replace(WORKS, share=0.1)}
    assert Drain("a") in made.decide(loaded, 10.0)


def test_jobs_of_one_weight_have_equal_turns_and_one_of_a_small_weight_a_tenth_of_them() -> None:
    """There is room for one of three models, which always have work."""
    made, shares = memory(1.0), {"a": 1.0, "b": 1.0, "small": 0.001}
    now, began, turns = 0.0, 0.0, list[tuple[str, float]]()
    for key, share in shares.items():
        made.ask(request(key), 0.0, share=share)
    made.decide({}, 0.0)
    loaded = "a"
    while len(turns) < 6:
        now += 1.0
        if Drain(loaded) in made.decide({loaded: ModelUse(works=True, ready_since=began, share=shares[loaded])}, now):
            turns.append((loaded, now - began))
            made.release(loaded)
            (admitted,) = made.decide({}, now)
            made.ask(request(loaded), now, share=shares[loaded])
            loaded, began = admitted.key, now
    assert turns == [("a", 100.0), ("b", 100.0), ("small", 10.0)] * 2


def test_a_turn_is_longer_for_a_model_that_takes_long_to_load() -> None:
    made = full("a", of=memory(1.0))
    made.ask(request("b"), 0.0)
    slow = {"a": dataclasses.replace(WORKS, load_seconds=30.0)}
    assert made.decide(slow, 100.0) == []
    assert made.decide(slow, 120.0) == [Drain("a")]


def test_a_model_that_was_to_leave_stays_when_nobody_waits_any_more() -> None:
    made = full("a", of=memory(1.0))
    made.ask(request("b"), 0.0)
    assert made.decide({"a": WORKS}, LATER) == [Drain("a")]
    made.withdraw("b")
    assert made.is_waited_for
    assert made.decide({"a": WORKS}, LATER) == [EndDrain("a")]
    assert not made.is_waited_for


def test_a_model_that_can_never_fit_is_refused_with_what_to_change() -> None:
    made = memory(2.0)
    made.ask(request("huge", 3.5), 0.0)
    (refused,) = made.decide({}, 0.0)
    assert isinstance(refused, Refuse)
    assert "huge takes about 3.5 GiB and 2 GiB" in refused.why
    assert "--memory_gib" in refused.why


def test_beside_pinned_models_it_is_refused_by_their_names() -> None:
    made = full("a", "b")
    made.ask(request("c", 1.5), 0.0)
    pinned = {"a": dataclasses.replace(IDLE, is_pinned=True), "b": IDLE}
    assert made.decide(pinned, LATER) == [], "one that is to come back waits: the pin ends with its job"
    made.ask(request("c", 1.5), 0.0, is_opening=True)
    (refused,) = made.decide(pinned, LATER)
    assert isinstance(refused, Refuse)
    assert "1 GiB of memory are for it beside pinned a" in refused.why


def test_behind_a_model_that_pinned_ones_leave_no_room_for_nobody_waits() -> None:
    made = full("pinned", of=memory(4.0))
    made.ask(request("large", 3.5), 0.0)
    made.ask(request("small", 3.0), 61.0, is_opening=True)
    pinned = {"pinned": dataclasses.replace(IDLE, is_pinned=True)}
    assert made.decide(pinned, 62.0) == [Admit("small")]
    loaded = {"pinned": IDLE, "small": dataclasses.replace(IDLE, last_used=1.0)}
    assert made.decide(loaded, LATER) == [Evict("pinned"), Evict("small"), Admit("large")], "the pin is over"


def test_the_pins_that_are_named_count_alone() -> None:
    made = full("own", "other's", of=memory(4.0))
    pinned = dict.fromkeys(("own", "other's"), dataclasses.replace(IDLE, is_pinned=True))
    asked = request("large", 2.5)
    assert "beside pinned own, other's" in made.why_never(asked, pinned)
    assert made.why_never(asked, pinned, {"own"}) == ""
    assert "beside pinned own:" in made.why_never(request("larger", 3.5), pinned, {"own"})
    assert made.why_never(request("larger", 3.5), pinned, set()) == ""


def test_one_model_alone_is_always_admitted_where_nobody_set_a_budget() -> None:
    made = full("a", of=memory(2.0, is_limited=False))
    made.ask(request("huge", 3.5), 0.0)
    assert made.decide({"a": WORKS}, 1.0) == []
    assert made.decide({"a": IDLE}, LATER) == [Evict("a"), Admit("huge")]
    made.check_integrity()


def test_a_kv_cache_shrinks_before_a_model_is_turned_away() -> None:
    made = memory(10.0)
    made.ask(request("a", 1.0, most_cache=100.0), 0.0)
    made.ask(request("b", 1.0, most_cache=100.0), 0.0)
    first, second = made.decide({}, 0.0)
    assert isinstance(first, Admit)
    assert isinstance(second, Admit)
    assert first.cache is not None
    assert second.cache is not None
    assert 5 * GIB < first.cache < 6 * GIB
    assert 1 * GIB < second.cache < 3 * GIB
    made.check_integrity()


def test_an_engine_alone_sizes_its_own_cache_where_nobody_set_a_budget() -> None:
    made = memory(10.0, is_limited=False)
    made.ask(request("a", 1.0, most_cache=100.0), 0.0)
    assert made.decide({}, 0.0) == [Admit("a")]


@pytest.mark.parametrize(("other", "cache"), [(1.0, True), (9.5, False)], ids=["fits beside it", "does not"])
def test_it_gets_a_bound_if_another_model_in_use_could_be_loaded_beside_it(other: float, cache: bool) -> None:
    """Else its engine takes what there is, and the other model is admitted into memory that is gone."""
    made = memory(10.0, is_limited=False)
    models = [request("a", 1.0, most_cache=100.0), request("b", other, most_cache=100.0)]
    made.expect(models)
    made.ask(models[0], 0.0)
    (admitted,) = made.decide({}, 0.0)
    assert isinstance(admitted, Admit)
    assert (admitted.cache is not None) is cache
    made.ask(models[1], 1.0)
    assert [type(each) for each in made.decide({"a": WORKS}, 1.0)] == [Admit] * cache


def test_of_three_models_each_two_of_which_fit_none_takes_all_memory() -> None:
    made = memory(2.5, is_limited=False)
    models = [request(key, most_cache=100.0) for key in "abc"]
    made.expect(models)
    made.ask(models[0], 0.0)
    (admitted,) = made.decide({}, 0.0)
    assert isinstance(admitted, Admit)
    assert admitted.cache is not None


def test_memory_is_kept_for_as_many_other_models_as_fit_at_once() -> None:
    made = memory(10.0, is_limited=False)
    made.expect([request("a", 1.0, most_cache=100.0), request("b", 2.0), request("large", 9.0)])
    made.ask(request("a", 1.0, most_cache=100.0), 0.0)
    (admitted,) = made.decide({}, 0.0)
    assert isinstance(admitted, Admit)
    assert admitted.cache is not None
    assert admitted.cache > 4 * GIB


def test_what_an_engine_alone_takes_for_itself_is_charged() -> None:
    made = memory(10.0, is_limited=False)
    models = [request("a", 1.0, most_cache=100.0), request("large", 9.5)]
    made.expect(models)
    made.ask(models[0], 0.0)
    assert made.decide({}, 0.0) == [Admit("a")]
    made.ask(request("small", 6.0), 1.0)
    assert made.decide({"a": WORKS}, 1.0) == []


def test_several_models_in_a_place_crowd_it_and_one_does_not() -> None:
    made = memory(2.0, gpu=1.0)
    for models, is_crowded in (
        ([request("huge", 5.0)], False),
        ([request("a"), request("b"), request("c", places=("gpu",))], False),
        ([request("a"), request("b"), request("c")], True),
    ):
        made.expect(models)
        assert made.is_crowded is is_crowded


def test_a_kv_cache_leaves_room_for_the_other_models_in_use() -> None:
    made = memory(4.0)
    models = [request(key, most_cache=100.0) for key in "abc"]
    made.expect(models)
    for each in models:
        made.ask(each, 0.0)
    assert len(made.decide({}, 0.0)) == 3
    made.check_integrity()


class Traffic(RuleBasedStateMachine):
    """Models come and go as they like: nobody gets memory that is not there, and nobody waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = memory(4.0, is_limited=False)
        self.now = 0.0
        self.loaded: dict[str, ModelUse] = {}
        self.requests: set[str] = set()
        self.caches: dict[str, int] = {}
        """The targets of those that have not answered."""

    @rule(
        key=st.sampled_from("abcdefgh"),
        gib=st.floats(0.5, 5.0),
        least_cache=st.sampled_from([0.0, 0.3]),
        most_cache=st.sampled_from([0.0, 0.5, 9.0]),
        is_opening=st.booleans(),
    )
    def ask(self, key: str, gib: float, least_cache: float, most_cache: float, is_opening: bool) -> None:
        if key not in self.loaded:
            self.requests.add(key)
            asked = request(key, gib, least_cache=least_cache, most_cache=max(least_cache, most_cache))
            self.memory.ask(asked, self.now, is_opening=is_opening)

    @rule(key=st.sampled_from("abcdefgh"))
    def withdraw(self, key: str) -> None:
        self.requests.discard(key)
        self.memory.withdraw(key)

    @rule(key=st.sampled_from("abcdefgh"), works=st.booleans(), is_pinned=st.booleans(), can_shrink=st.booleans())
    def change(self, key: str, works: bool, is_pinned: bool, can_shrink: bool) -> None:
        if key in self.loaded:
            may = None if key in self.caches else can_shrink
            self.loaded[key] = ModelUse(works, self.now, self.now, is_pinned=is_pinned, can_shrink=may)

    @rule(key=st.sampled_from("abcdefgh"), part=st.sampled_from([0.9, 1.0, 1.0, 1.1]))
    def answer(self, key: str, part: float) -> None:
        """An engine has changed its cache, more or less as it was told."""
        if key in self.caches:
            self.memory.resized(key, int(self.caches.pop(key) * part))
            self.loaded[key] = dataclasses.replace(self.loaded[key], can_shrink=True)

    @rule(key=st.sampled_from("abcdefgh"))
    def end(self, key: str) -> None:
        if self.loaded.pop(key, None):
            self.memory.release(key)
            self.caches.pop(key, None)

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for decision in self.memory.decide(self.loaded, self.now):
            self.carry_out(decision)

    def carry_out(self, decision: Decision) -> None:
        match decision:
            case Admit(key):
                self.requests.remove(key)
                self.loaded[key] = ModelUse(works=True)
            case Evict(key):
                model = self.loaded.pop(key)
                assert not model.works
                assert not model.is_pinned
                self.caches.pop(key, None)
            case ResizeCache(key, cache):
                assert key not in self.caches, "told twice"
                assert self.loaded[key].can_shrink
                self.caches[key] = cache
                self.loaded[key] = dataclasses.replace(self.loaded[key], can_shrink=None)
            case Drain(key):
                assert self.loaded[key].works
            case Refuse(key):
                self.requests.remove(key)

    @rule(keys=st.sets(st.sampled_from("abcdefgh")), gib=st.floats(0.5, 5.0))
    def expect(self, keys: set[str], gib: float) -> None:
        self.memory.expect(request(key, gib) for key in keys)

    @invariant()
    def the_account_is_right(self) -> None:
        self.memory.check_integrity()
        assert self.memory.is_waited_for or not self.requests

    def teardown(self) -> None:
        for _ in range(20):
            for key in list(self.caches):
                self.answer(key, 1.0)
            self.loaded = {
                key: dataclasses.replace(IDLE, can_shrink=use.can_shrink) for key, use in self.loaded.items()
            }
            self.pass_time(20.0)
        assert not self.requests
        assert not self.memory.is_waited_for


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=runs(150), stateful_step_count=40)

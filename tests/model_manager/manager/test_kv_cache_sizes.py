"""The KV caches of loaded models: which is cut and by how much, what a newcomer gets, and when one grows again."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.manager.memory_account import Holding, LoadRequest, equal_excess
from millrace.model_manager.manager.memory_scheduler import (
    Admit,
    Decision,
    Drain,
    Evict,
    MemoryScheduler,
    ModelUse,
    Refuse,
    ResizeCache,
)
from tests.model_manager.manager.memory_world import GIB, IDLE, LATER, WORKS, memory, request
from tests.searches import runs

ELASTIC = dataclasses.replace(WORKS, can_shrink=True)
CHANGING = dataclasses.replace(WORKS, can_shrink=None)


def elastic(*keys: str, gib: float = 10.0, is_limited: bool = True) -> MemoryScheduler:
    """A memory in which these models have taken all that there is."""
    made = memory(gib, is_limited=is_limited)
    for key in keys:
        made.ask(request(key, least_cache=0.5, most_cache=100.0), 0.0)
    assert all(isinstance(each, Admit) for each in made.decide({}, 0.0))
    return made


def only(decisions: list[Decision]) -> ResizeCache:
    (resize,) = decisions
    assert isinstance(resize, ResizeCache)
    return resize


def told(made: MemoryScheduler, now: float, **loaded: ModelUse) -> dict[str, float]:
    """GiB of the KV caches that change their size, all of which do so as they were told."""
    resizes = [each for each in made.decide(loaded, now) if isinstance(each, ResizeCache)]
    for each in resizes:
        made.resized(each.key, each.cache)
    return {each.key: round(each.cache / GIB, 2) for each in resizes}


def test_the_cache_of_a_model_with_work_shrinks_before_another_is_turned_away() -> None:
    made = elastic("a")  # has 1 GiB, and 5.4 of cache
    made.ask(request("b", 4.0, least_cache=1.0), 100.0, is_opening=True)
    resize = only(made.decide({"a": ELASTIC}, 100.0))
    assert (resize.key, resize.cache) == ("a", 4 * GIB)
    assert made.waits_for("b") == "5 GiB, 3.6 GiB are free; in memory: a; the KV cache shrinks of: a"
    assert made.decide({"a": CHANGING}, 101.0) == [], "it is told once"
    made.resized("a", resize.cache - 100)
    assert made.decide({"a": ELASTIC}, 102.0) == [Admit("b", GIB)]
    made.check_integrity()


def test_a_newcomer_for_which_a_cache_shrinks_gets_as_much_above_its_smallest_cache() -> None:
    made = elastic("a")
    made.ask(request("b", 4.0, least_cache=1.0, most_cache=100.0), 100.0)
    assert told(made, 100.0, a=ELASTIC) == {"a": 2.25}
    assert made.decide({"a": ELASTIC}, 101.0) == [Admit("b", int(2.75 * GIB))], "3.5 GiB above 0.5 and 1"
    assert made.decide({"a": ELASTIC, "b": ELASTIC}, LATER) == [], "there is nothing left to grow into"
    made.check_integrity()


def test_what_a_newcomer_cannot_use_stays_with_the_others() -> None:
    made = elastic("a")
    made.ask(request("b", 4.0, least_cache=1.0, most_cache=1.5), 100.0)
    assert told(made, 100.0, a=ELASTIC) == {"a": 3.5}
    assert made.decide({"a": ELASTIC}, 101.0) == [Admit("b")], "it has the most that it can use"


def test_caches_may_be_of_any_size() -> None:
    """As of a model whose config.json says that it has so many positions."""
    assert equal_excess(2.0**70, [(0, 2**65), (0, 5)]) == 2**65
    assert equal_excess(math.inf, [(0, 2**65)]) == 2**65
    assert equal_excess(2.0**64, [(0, 2**65), (0, 2**66)]) == 2**63


def test_caches_shrink_to_equal_excess_and_one_that_has_less_keeps_its_size() -> None:
    for gib, caches in ((4.0, {"a": 2.44}), (6.0, {"a": 1.0, "b": 1.0})):
        made = elastic("a", "b")  # caches of 5.4 and 1.56 GiB
        made.ask(request("c", gib), 100.0)
        assert told(made, 100.0, a=ELASTIC, b=ELASTIC) == caches
        assert made.decide({"a": ELASTIC, "b": ELASTIC}, 101.0) == [Admit("c")]


def test_a_newcomer_waits_for_all_caches_that_shrink_and_not_only_until_it_fits() -> None:
    """Its cache cannot grow above the size that it is admitted with."""
    made = elastic("a", "b", gib=14.0)  # caches of 7.8 and 2.52 GiB, 1.68 are free
    made.ask(request("c", 6.0, least_cache=0.5, most_cache=100.0), 100.0)
    first, second = made.decide({"a": ELASTIC, "b": ELASTIC}, 100.0)
    assert isinstance(first, ResizeCache)
    assert isinstance(second, ResizeCache)
    made.resized("a", first.cache)
    assert made.decide({"a": ELASTIC, "b": CHANGING}, 101.0) == []
    assert made.waits_for("c").endswith("the KV cache shrinks of: b")
    made.resized("b", second.cache)
    (admitted,) = made.decide({"a": ELASTIC, "b": ELASTIC}, 102.0)
    assert admitted == Admit("c", 2 * GIB)
    assert first.cache == second.cache == 2 * GIB


def test_a_newcomer_that_fits_does_not_wait_for_an_engine_that_turns_out_unable_to_shrink() -> None:
    made = elastic("a", "b")
    made.ask(request("c", 4.0), 100.0)
    assert only(made.decide({"a": ELASTIC, "b": ELASTIC}, 100.0)).key == "a"
    made.release("b")
    assert made.decide({"a": CHANGING}, 101.0) == []
    made.withdraw("c")
    made.ask(request("d", 2.0), 102.0)
    assert made.decide({"a": CHANGING}, 102.0) == []
    assert made.decide({"a": WORKS}, 103.0) == [Admit("d")]


def test_a_cut_leaves_their_share_to_models_in_use_that_are_not_loaded() -> None:
    made = elastic("a")
    models = [request(key, least_cache=0.5, most_cache=100.0) for key in "abc"]
    made.expect(models)
    made.ask(request("b", 4.0, least_cache=0.5, most_cache=100.0), 100.0)
    assert told(made, 100.0, a=ELASTIC) == {"a": 1.33}, "a third of what is above 1.5, 4.5 and 1.5"
    (admitted,) = made.decide({"a": ELASTIC}, 101.0)
    assert isinstance(admitted, Admit)
    made.ask(models[2], 102.0)
    (last,) = made.decide({"a": ELASTIC, "b": ELASTIC}, 102.0)
    assert isinstance(last, Admit)
    assert admitted.cache == pytest.approx(1.333 * GIB, rel=0.001)
    assert last.cache == pytest.approx(admitted.cache, abs=9)


def test_where_no_cache_can_shrink_the_first_of_models_in_use_leaves_their_share_to_the_others() -> None:
    made = memory(gpu=16.0)
    models = [request(key, least_cache=1.0, most_cache=100.0, places=("gpu",)) for key in "abc"]
    made.expect(models)
    caches = []
    for each in models:
        made.ask(each, 0.0)
        (admitted,) = made.decide(dict.fromkeys(made._held, WORKS), 0.0)
        assert isinstance(admitted, Admit)
        assert admitted.cache is not None
        caches.append(admitted.cache / GIB)
    assert caches == pytest.approx([4.33, 4.33, 4.0], abs=0.05), "the last leaves 8 % of what is free"


@given(
    st.lists(
        st.builds(
            request,
            st.uuids().map(str),
            st.floats(0.1, 3.0),
            least_cache=st.sampled_from([0.0, 0.2, 0.5]),
            most_cache=st.sampled_from([0.5, 2.0, 100.0]),
        ),
        min_size=2,
        max_size=6,
    )
)
@settings(max_examples=runs(200))
def test_whenever_one_comes_for_whom_caches_shrink_all_have_equal_excess(models: list[LoadRequest]) -> None:
    """Or as much as they can use, or had before. No cache shrinks twice for one newcomer."""
    made, now = memory(12.0), 0.0
    for newcomer in models:
        now += 1.0
        loaded = dict.fromkeys(made._held, ELASTIC)
        made.expect([*(held.request for held in made._held.values()), newcomer])
        made.ask(newcomer, now)
        if cut := told(made, now, **loaded):
            assert [type(each) for each in made.decide(loaded, now)] == [Admit]
            excess = {key: held.excess for key, held in made._held.items()}
            fair = pytest.approx(max(excess[key] for key in cut), abs=9)
            assert all(excess[key] == fair for key in cut)
            assert excess[newcomer.key] in (fair, newcomer.need.most_excess)
            assert max(excess.values()) == fair
        made.withdraw(newcomer.key)
        made.check_integrity()


def test_a_model_takes_a_turn_if_no_cache_has_enough_to_spare() -> None:
    made = elastic("a")
    made.ask(request("b", 9.0), 1.0)
    assert made.decide({"a": ELASTIC}, 2.0) == []
    assert made.decide({"a": ELASTIC}, LATER) == [Drain("a")]


def test_an_engine_that_cannot_shrink_takes_turns_as_ever() -> None:
    made = elastic("a")
    made.ask(request("b", 5.0), 1.0)
    assert made.decide({"a": WORKS}, LATER) == [Drain("a")]


def test_only_one_model_drains_where_it_is_enough_with_what_others_can_spare() -> None:
    made = memory(10.0)
    for key, most_cache in (("a", 100.0), ("b", 0.0), ("c", 0.0)):
        made.ask(request(key, 1.0 if key == "a" else 1.5, most_cache=most_cache), 0.0)
    made.expect([request("a"), request("b", 1.5), request("c", 1.5)])
    made.decide({}, 0.0)
    made.ask(request("d", 7.0), 1.0)
    recent = dataclasses.replace(ELASTIC, ready_since=LATER)
    loaded = {"a": recent, "b": dataclasses.replace(WORKS, ready_since=1.0), "c": WORKS}
    assert made.decide(dict(loaded), LATER) == [Drain("c")]
    made.release("c")
    del loaded["c"]
    assert only(made.decide(loaded, LATER + 1)).key == "a"


def test_a_model_in_use_shrinks_before_it_goes_and_one_that_nobody_uses_goes_first() -> None:
    idle = dataclasses.replace(IDLE, can_shrink=True)
    for used, decided in ((["a", "b"], ResizeCache), (["b"], Evict)):
        made = elastic("a")
        made.expect(request(key, least_cache=0.5) for key in used)
        made.ask(request("b", 4.0, least_cache=1.0), 100.0)
        assert isinstance(made.decide({"a": idle}, 100.0)[0], decided)


def test_an_idle_model_goes_where_it_cannot_shrink_by_enough() -> None:
    made = elastic("a")
    made.expect([request("a"), request("b")])
    made.ask(request("b", 9.0), 100.0)
    assert made.decide({"a": dataclasses.replace(IDLE, can_shrink=True)}, 100.0) == [Evict("a"), Admit("b")]


def test_a_pinned_models_cache_shrinks_too_and_only_what_is_left_then_is_out_of_reach() -> None:
    pinned = dataclasses.replace(ELASTIC, is_pinned=True)
    made = elastic("a")
    made.ask(request("b", 8.5), 100.0, is_opening=True)
    assert made.decide({"a": dataclasses.replace(pinned, can_shrink=None)}, 100.0) == [], "nobody knows yet"
    assert only(made.decide({"a": pinned}, 101.0)).cache == GIB // 2
    made.withdraw("b")
    made.ask(request("c", 9.0), 102.0, is_opening=True)
    (refused,) = made.decide({"a": pinned}, 102.0)
    assert isinstance(refused, Refuse)
    assert "8.5 GiB of memory are for it beside pinned a" in refused.why


def test_a_cache_that_shrinks_less_than_it_was_told_is_not_told_again() -> None:
    made = elastic("a")
    made.ask(request("b", 7.0), 1.0)
    resize = only(made.decide({"a": ELASTIC}, 1.0))
    made.resized("a", resize.cache + GIB)
    assert made.decide({"a": ELASTIC}, 2.0) == []
    assert made.decide({"a": ELASTIC}, LATER) == [Drain("a")]


def test_an_engine_that_has_chosen_its_own_cache_shrinks_too() -> None:
    made = elastic("a", is_limited=False)
    made.resized("a", 7 * GIB)
    made.ask(request("b", 5.0), 1.0)
    assert only(made.decide({"a": ELASTIC}, 1.0)).cache == 4 * GIB
    made.resized("a", 4 * GIB)
    assert made.decide({"a": ELASTIC}, 2.0) == [Admit("b")]


def test_what_an_engine_says_that_it_takes_is_charged_if_it_is_less() -> None:
    made = elastic("a")
    made.resized("a", 2 * GIB)
    assert not made.has_shrunk
    made.ask(request("b", 7.0), 1.0)
    assert made.decide({"a": WORKS}, 1.0) == [Admit("b")]


def shrunk() -> MemoryScheduler:
    """`a` was cut to 4 of 5.4 GiB of cache for `b`, which is gone again; somebody waited at 100 s."""
    made = elastic("a")
    made.ask(request("b", 5.0), 100.0)
    made.resized("a", only(made.decide({"a": ELASTIC}, 100.0)).cache)
    made.decide({"a": ELASTIC}, 100.0)
    assert made.has_shrunk
    made.release("b")
    return made


def test_a_cache_grows_again_once_nobody_has_waited_for_a_while() -> None:
    made = shrunk()
    assert made.decide({"a": ELASTIC}, 110.0) == []
    grown = only(made.decide({"a": ELASTIC}, 131.0))
    assert 5 * GIB < grown.cache <= 5.4 * GIB
    made.check_integrity()
    assert made.decide({"a": CHANGING}, 132.0) == []
    made.resized("a", grown.cache)
    assert not made.has_shrunk


def test_caches_grow_by_equal_shares_and_leave_theirs_to_models_in_use() -> None:
    for used, grown in (("ab", {"a": 1.9, "b": 1.9}), ("abd", {"a": 1.13, "b": 1.13})):
        made = elastic("a")
        made.ask(request("b", 4.0, least_cache=0.5, most_cache=100.0), 100.0)
        assert told(made, 100.0, a=ELASTIC) == {"a": 2.5}
        assert made.decide({"a": ELASTIC}, 100.0) == [Admit("b", int(2.5 * GIB))]
        made.ask(request("c", 3.0), 101.0)
        assert told(made, 101.0, a=ELASTIC, b=ELASTIC) == {"a": 1.0, "b": 1.0}
        assert made.decide({"a": ELASTIC, "b": ELASTIC}, 101.0) == [Admit("c")]
        made.release("c")
        made.expect(request(key, least_cache=0.5, most_cache=100.0) for key in used)
        assert told(made, LATER, a=ELASTIC, b=ELASTIC) == grown, "60 % of what is free"
        made.check_integrity()


def test_what_it_is_to_have_is_charged_before_a_cache_grows() -> None:
    made = shrunk()
    made.decide({"a": ELASTIC}, 131.0)
    made.ask(request("c", 4.5), 132.0)
    assert made.decide({"a": CHANGING}, 132.0) == []


def test_a_cache_that_grows_less_than_it_was_told_is_not_told_again() -> None:
    made = shrunk()
    only(made.decide({"a": ELASTIC}, 131.0))
    made.resized("a", 5 * GIB)
    assert not made.has_shrunk
    assert made.decide({"a": ELASTIC}, LATER) == []


def test_a_growth_in_part_that_ends_at_the_end_of_a_block_is_not_the_last() -> None:
    held = Holding(request("a", 1.0), cache=1000, most_cache=3000, least_cache=500, target=2000)
    held.resized(1984)
    assert (held.cache, held.most_cache) == (1984, 3000)
    held.target = 3000
    held.resized(2992)
    assert (held.cache, held.most_cache) == (2992, 2992)


def test_a_cache_does_not_grow_into_memory_that_another_model_in_use_would_need() -> None:
    made = shrunk()
    made.expect([request("a", least_cache=0.5), request("b", 5.0)])
    assert made.decide({"a": ELASTIC}, LATER) == []
    made.expect([request("a", least_cache=0.5), request("b", 2.0)])
    assert only(made.decide({"a": ELASTIC}, LATER)).cache > 5 * GIB

"""The engine of each request: requests that share a prompt stay together, and the load is balanced all the same."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.manager import engine_pool
from millrace.model_manager.manager.counts import ModelCounts
from millrace.model_manager.manager.engine_pool import AHEAD, EnginePool, Families, State
from millrace.model_manager.manager.entry import Entry
from millrace.model_manager.manager.gpus import EngineSetup
from millrace.model_manager.manager.outbox import Outbox
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Request, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.router_world import INFO


def pool(num_engines: int, max_num_seqs: int = 1024) -> EnginePool:
    made = EnginePool("key", "/", [EngineSetup(ModelConfig())] * num_engines, 1.0, Outbox(), ModelCounts("m"))
    for slot in made.slots:
        slot.state, slot.info = State.READY, msgspec.structs.replace(INFO, max_num_seqs=max_num_seqs)
    return made


def entry(
    name: str, prompt: int, tokens: int, family: str = "", task: RequestTask = "generate", score_from: int = 0
) -> Entry:
    params = SamplingParams(max_tokens=tokens)
    return Entry(Request(name, [0] * prompt, params, family=family, task=task, score_from=score_from), arrived=0.0)


def family(name: str, size: int, prompt: int, tokens: int) -> list[Entry]:
    return [entry(f"{name}/{index}", prompt, tokens, name) for index in range(size)]


def give(engines: EnginePool, entries: Iterable[Entry]) -> None:
    """All of them; none is left."""
    unsent = {each.request.request_id: each for each in entries}
    given = [each for _, each_slots in engines.assign(unsent, {}) for each in each_slots]
    assert len(given) == len(unsent)


def homes(entries: Iterable[Entry]) -> dict[str, set[int | None]]:
    found: dict[str, set[int | None]] = defaultdict(set)
    for each in entries:
        found[each.request.family].add(each.engine)
    return found


def works(engines: EnginePool) -> list[int]:
    return [slot.work for slot in engines.slots]


@pytest.mark.parametrize("together", [True, False])
def test_families_stay_whole_and_engines_balanced_where_there_is_work_for_all(together: bool) -> None:
    engines = pool(3)
    give(engines, (entry(f"lone {index}", 50, 100) for index in range(60)))
    entries = [each for index in range(30) for each in family(f"f{index}", 4, prompt=100, tokens=20)]
    for group in [entries] if together else [[each] for each in entries]:
        give(engines, group)
    assert {len(engines_of) for engines_of in homes(entries).values()} == {1}
    assert max(works(engines)) - min(works(engines)) <= 0.1 * max(works(engines))


def test_a_family_is_divided_where_engines_would_be_idle_otherwise() -> None:
    engines = pool(2)
    entries = family("f", 16, prompt=10, tokens=100)
    give(engines, entries)
    assert sorted(each.engine or 0 for each in entries) == [0] * 8 + [1] * 8


def test_a_prompt_is_not_computed_again_for_few_tokens() -> None:
    engines = pool(2)
    entries = family("f", 8, prompt=1000, tokens=5)
    give(engines, entries)
    assert homes(entries) == {"f": {0}}
    assert works(engines) == [1000 + 8 * 5, 0]
    scores = [entry(f"s{index}", 500 + index, 1, "s", task="score", score_from=500) for index in range(1, 5)]
    give(engines, scores)
    assert homes(scores) == {"s": {1}}
    assert works(engines)[1] == 500 + sum(index + 1 for index in range(1, 5))


def test_an_engine_that_has_no_room_is_no_home() -> None:
    engines = pool(2, max_num_seqs=2)
    entries = family("f", 6, prompt=1000, tokens=5)
    give(engines, entries)
    assert [each.engine for each in entries] == [0] * 4 + [1] * 2


def test_a_prompt_is_remembered_when_its_first_request_is_done_and_gone_with_its_engine() -> None:
    engines = pool(2)
    first, second, third = family("f", 3, prompt=1000, tokens=5)
    give(engines, [first])
    engines.slots[0].remove(first)
    give(engines, [entry("other", 20, 20)])
    give(engines, [second])
    assert (second.engine, second.work) == (0, 5)
    engines.slots[0].remove(second)
    engines.restart(engines.slots[0])
    engines.slots[0].state = State.READY
    give(engines, [third])
    assert (third.engine, third.work) == (1, 1005)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 100), st.integers(1, 200)).map(
        lambda drawn: ("" if not drawn[0] else f"f{drawn[0]}", *drawn[1:])
    ),
    min_size=1,
    max_size=60,
)


@given(st.integers(1, 5), REQUESTS, st.data())
def test_no_engine_is_ahead_by_more_than_a_bound(
    num_engines: int, requests: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Whatever comes, together or one by one: by the largest request, what a family shares, and AHEAD of its work."""
    engines = pool(num_engines)
    entries = [entry(f"r{index}", prompt, tokens, name) for index, (name, prompt, tokens) in enumerate(requests)]
    bound = max(prompt + tokens for _, prompt, tokens in requests) + max(prompt for _, prompt, _ in requests)
    while entries:
        size = data.draw(st.integers(1, len(entries)))
        give(engines, entries[:size])
        entries = entries[size:]
        for slot in engines.slots:
            slot.check_integrity()
        assert (1 - AHEAD) * max(works(engines)) <= min(works(engines)) + bound


@given(st.integers(2, 5), REQUESTS)
def test_lone_requests_go_to_the_engine_with_the_least_to_do(
    num_engines: int, requests: list[tuple[str, int, int]]
) -> None:
    engines = pool(num_engines)
    for index, (_, prompt, tokens) in enumerate(requests):
        least = min(works(engines))
        lone = entry(f"r{index}", prompt, tokens)
        give(engines, [lone])
        assert engines.slots[lone.engine or 0].work == least + prompt + tokens


def urgent(name: str, priority: int = -1) -> Entry:
    return Entry(Request(name, [0], SamplingParams(priority=priority)), arrived=0.0)


def test_a_full_engine_has_room_for_what_is_more_urgent_than_a_request_that_it_has() -> None:
    engines = pool(1, max_num_seqs=2)
    (slot,) = engines.slots
    give(engines, [entry(f"row {index}", 5, 5) for index in range(4)])
    rest = {each.request.request_id: each for each in (entry("row", 5, 5), urgent("a"), urgent("b", -2))}
    (given,) = engines.assign(rest, {})
    assert [each.request.request_id for each in given[1]] == ["b", "a"]
    slot.check_integrity()
    assert not [*engines.assign({"late": rest["row"]}, {})]


def test_a_full_engine_has_no_room_for_what_is_as_urgent_as_all_that_it_has() -> None:
    engines = pool(1, max_num_seqs=2)
    give(engines, [urgent(f"{index}") for index in range(4)])
    assert not [*engines.assign({"a": urgent("a")}, {})]


@pytest.mark.parametrize("deaths", [0, 1])
def test_a_row_in_16_goes_to_an_engine_though_more_urgent_ones_than_it_takes_always_wait(deaths: int) -> None:
    engines = pool(1, max_num_seqs=8)
    (slot,) = engines.slots
    unsent = {f"row {number}": entry(f"row {number}", 5, 5) for number in range(400)}
    given: list[str] = []
    for number in range(400):
        slot.deaths_in_row = deaths
        unsent |= {f"{number}/{index}": urgent(f"{number}/{index}") for index in range(30)}
        for _, entries in engines.assign(unsent, {}):
            for each in entries:
                given.append(each.request.request_id)
                del unsent[each.request.request_id]
        slot.check_integrity()
        for each in list(slot.entries.values()):
            slot.remove(each)
    rows = [index for index, name in enumerate(given) if name.startswith("row")]
    assert [name for name in given if name.startswith("row")] == [f"row {number}" for number in range(len(rows))]
    assert len(rows) > 9
    assert {after - before for before, after in itertools.pairwise(rows)} == {engine_pool.SHARE + 1}


@pytest.mark.parametrize("clients", [32, 256])
def test_beside_more_clients_than_an_engine_takes_a_row_follows_each_16_of_their_requests(clients: int) -> None:
    """In a closed loop: a row in the engine lets all of theirs in, and then there is no room for long. The engine runs
    rows at a share of its own.
    """
    engines = pool(1, max_num_seqs=16)
    (slot,) = engines.slots
    unsent = {f"row {number}": entry(f"row {number}", 5, 5) for number in range(400)}
    unsent |= {f"{number}": urgent(f"{number}") for number in range(clients)}
    ended: list[str] = []
    while len(ended) < 3000:
        for _, entries in engines.assign(unsent, {}):
            for each in entries:
                del unsent[each.request.request_id]
        rows = [name for name in slot.entries if name.startswith("row")]
        for name in [*rows, *(name for name in slot.entries if name not in rows)][:4]:
            slot.remove(slot.entries[name])
            ended.append(name)
            if not name.startswith("row"):
                unsent[f"again {len(ended)}"] = urgent(f"again {len(ended)}")
        slot.check_integrity()
        assert len(slot.entries) <= clients + 16 / 4
    assert sum(name.startswith("row") for name in ended) >= 0.8 * 3000 / (engine_pool.SHARE + 1)


def test_rows_that_do_not_end_do_not_pile_up_in_an_engine() -> None:
    engines = pool(1, max_num_seqs=4)
    (slot,) = engines.slots
    unsent = {f"row {number}": entry(f"row {number}", 5, 5) for number in range(400)}
    for number in range(400):
        unsent[str(number)] = urgent(str(number))
        for _, entries in engines.assign(unsent, {}):
            for each in entries:
                del unsent[each.request.request_id]
        for name in [name for name in slot.entries if not name.startswith("row")]:
            slot.remove(slot.entries[name])
        assert len(slot.entries) <= engines.capacity


def test_of_several_full_engines_only_one_with_a_less_urgent_request_has_room() -> None:
    engines = pool(2, max_num_seqs=1)
    give(engines, [urgent(f"urgent {index}", priority=-5) for index in range(4)])
    second = engines.slots[1]
    for each in list(second.entries.values()):
        second.remove(each)
    give(engines, [entry("row 1", 5, 5), entry("row 2", 5, 5)])
    asked = urgent("a", priority=-3)
    give(engines, [asked])
    assert asked.engine == 1


def test_after_a_death_an_engine_gets_no_more_than_it_can_run_however_urgent() -> None:
    engines = pool(1, max_num_seqs=2)
    engines.slots[0].deaths_in_row = 1
    give(engines, [entry(f"row {index}", 5, 5) for index in range(2)])
    assert not [*engines.assign({"a": urgent("a")}, {})]


def test_all_engines_that_got_one_of_a_family_are_known_until_they_end() -> None:
    known = Families()
    known.put("a", 0)
    known.put("a", 2)
    known.put("b", 2)
    assert (known.engines_of("a"), known.engines_of("b"), known.engines_of("c")) == ({0, 2}, {2}, frozenset())
    known.forget(2)
    assert (known.engines_of("a"), known.engines_of("b")) == ({0}, set())


def test_lone_requests_are_no_family() -> None:
    known = Families()
    known.put("", 0)
    assert not known.engines_of("")


def test_the_family_that_was_longest_without_a_request_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "_MOST_FAMILIES", 2)
    known = Families()
    for name in ("a", "b", "a", "c"):
        known.put(name, 1)
    assert [bool(known.engines_of(name)) for name in "abc"] == [True, False, True]

from __future__ import annotations

import weakref
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.engine.scheduling.loaded_adapters import LoadedAdapters
from millrace.model_manager.engine.scheduling.scheduler import LOOK_AHEAD
from millrace.model_manager.engine.scheduling.sequence import Sequence, SequenceStatus
from millrace.model_manager.engine.scheduling.stopping import StopConditions, StopRules
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Adapter, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.scheduling.test_scheduler import Driver


class Slots:
    """Remembers what is where; an adapter named "bad" is refused."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.held: dict[int, str] = {}
        self.loads: list[str] = []

    def load(self, slot: int, adapter: Adapter) -> None:
        assert 0 <= slot < self.num_slots
        self.loads.append(adapter.name)
        if adapter.name == "bad":
            raise InvalidRequest("is bad")
        self.held[slot] = adapter.name


def sequence(name: str) -> Sequence:
    params = SamplingParams()
    adapter = Adapter(name, f"/{name}", name) if name else None
    conditions: StopConditions = StopRules(frozenset(), None).conditions(params, 5)
    return Sequence(Request("x", [1], params, adapter=adapter), conditions, now=0.0)


def sequences(names: Iterable[str]) -> list[Sequence]:
    return [sequence(name) for name in names]


def test_the_least_recently_used_that_nobody_runs_with_makes_room() -> None:
    slots = Slots(3)
    loaded = LoadedAdapters(slots)
    a, b, c = sequences("abc")
    loaded.load([a, b, c], [])
    slot_of_a, slot_of_c = a.adapter_slot, c.adapter_slot
    b.status = SequenceStatus.RUNNING
    loaded.load(sequences("a"), [b])
    (d,) = sequences("d")
    loaded.load([d], [b])
    assert d.adapter_slot == slot_of_c
    d.status = SequenceStatus.RUNNING
    e, f = sequences("ef")
    loaded.load([e, f], [b, d])
    assert e.adapter_slot == slot_of_a
    assert f.lacks_adapter


def test_a_sequence_that_others_pushed_back_does_not_start_in_a_slot_that_another_has_got() -> None:
    """It comes to the front again within a step, after the slots of that step were told."""
    slots, driver = Slots(1), Driver(num_blocks=4000, max_num_seqs=128, max_num_batched_tokens=512)
    loaded, scheduler = LoadedAdapters(slots), driver.scheduler

    def step() -> None:
        loaded.load(scheduler.waiting.window, scheduler.running.values())
        batch = scheduler.schedule()
        for each in batch:
            if (adapter := each.sequence.adapter) is not None:
                assert slots.held[each.sequence.adapter_slot] == adapter.name
        scheduler.computed(batch)
        for each in batch:
            each.sequence.append(1)
            scheduler.sampled(each.sequence)

    def add(name: str, priority: int, adapter: str = "") -> None:
        driver.add(name, 3, max_tokens=40, priority=priority).adapter = sequence(adapter).adapter

    add("runs", 0)
    step()
    add("row", 0, "x")
    loaded.load(scheduler.waiting.window, scheduler.running.values())
    for number in range(LOOK_AHEAD):
        add(f"urgent {number}", -1, "" if number else "y")
    step()
    assert scheduler.running.keys() >= {"urgent 0", "urgent 63"}
    assert "row" not in scheduler.running, "its adapter has no slot"


def test_a_preempted_sequence_goes_on_with_its_own_adapter_though_another_got_its_slot_meanwhile() -> None:
    slots, driver = Slots(1), Driver(num_blocks=100, max_num_seqs=1)
    loaded, scheduler = LoadedAdapters(slots), driver.scheduler

    def step() -> list[str]:
        loaded.load(scheduler.waiting.window, scheduler.running.values())
        for each in scheduler.running.values():
            assert each.adapter is None or slots.held[each.adapter_slot] == each.adapter.name
        return [*driver.step()]

    row = driver.add("row", 3, max_tokens=3, priority=0)
    row.adapter = sequence("x").adapter
    assert step() == ["row"]
    driver.add("urgent", 3, max_tokens=2, priority=-1)
    assert step() == ["urgent"]
    assert row.status is SequenceStatus.WAITING
    driver.add("other", 3, max_tokens=2, priority=-1).adapter = sequence("y").adapter
    assert [step() for _ in range(3)] == [["urgent"], ["other"], ["other"]]
    assert row.lacks_adapter
    assert [step() for _ in range(2)] == [["row"]] * 2
    assert slots.loads == ["x", "y", "x"]


def test_a_sequence_that_has_ended_is_not_kept() -> None:
    loaded = LoadedAdapters(Slots(1))
    ended = sequence("a")
    gone = weakref.ref(ended)
    loaded.load([ended], [])
    del ended
    assert gone() is None


@given(
    num_slots=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.lists(st.sampled_from(["", "a", "b", "c", "d", "bad"]), max_size=6), st.integers(0, 6))
    ),
)
def test_whoever_runs_has_its_own_adapter_and_the_first_in_line_is_never_stuck(
    num_slots: int, steps: list[tuple[list[str], int]]
) -> None:
    slots = Slots(num_slots)
    loaded = LoadedAdapters(slots)
    running: list[Sequence] = []
    for names, ending in steps:
        waiting = sequences(names)
        failed = [each for each, _ in loaded.load(waiting, running)]
        assert all(each.adapter is not None and each.adapter.name == "bad" for each in failed)
        left = [each for each in waiting if each not in failed]
        assert running or not left or not left[0].lacks_adapter
        running += [each for each in left if not each.lacks_adapter]
        for each in running:
            each.status = SequenceStatus.RUNNING
            assert each.adapter is None or slots.held[each.adapter_slot] == each.adapter.name
        del running[:ending]

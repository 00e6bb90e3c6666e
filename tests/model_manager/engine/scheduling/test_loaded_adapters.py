from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.engine.scheduling.loaded_adapters import LoadedAdapters
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopConditions, StopRules
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Adapter, Request
from millrace.model_manager.wire.sampling import SamplingParams


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
    loaded.load(sequences("a"), [])
    (d,) = sequences("d")
    loaded.load([d], [b])
    assert d.adapter_slot == c.adapter_slot
    e, f = sequences("ef")
    loaded.load([e, f], [b, d])
    assert e.adapter_slot == a.adapter_slot
    assert f.lacks_adapter


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
            assert each.adapter is None or slots.held[each.adapter_slot] == each.adapter.name
        del running[:ending]

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.engine.scheduling.sequence import Sequence, SequenceStatus
from millrace.model_manager.engine.scheduling.stopping import StopConditions
from millrace.model_manager.engine.scheduling.waiting_queue import WaitingQueue
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams


def sequence(name: str, place: int) -> Sequence:
    params = SamplingParams()
    return Sequence(Request(name, [1], params), StopConditions(params, 9, (), None), now=0.0, order=place)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60), st.integers(1, 8))
def test_the_window_is_the_beginning_of_the_line_whatever_comes_and_goes(
    events: list[tuple[int, bool]], look_ahead: int
) -> None:
    """Catches: a window that is not refilled from the heap, a heap that gives back what is over, an id left behind."""
    queue, expected = WaitingQueue(look_ahead), dict[int, Sequence]()
    for arrival, (place, leaves) in enumerate(events):
        if place not in expected:
            expected[place] = sequence(f"{place}", 1000 * place + arrival)
            queue.add(expected[place])
        elif leaves:
            gone = expected.pop(place)
            queue.remove(gone)
            gone.status = SequenceStatus.FINISHED
        queue.check_integrity()
        in_line = [expected[place] for place in sorted(expected)]
        assert queue.values() == in_line
        assert queue.window == in_line[:look_ahead]
        for place, each in enumerate(queue.window):
            assert queue.ahead_of(each) == in_line[:place]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-2, 2)), max_size=60), st.integers(1, 8))
def test_one_may_get_another_rank_wherever_it_stands(events: list[tuple[int, int]], look_ahead: int) -> None:
    """Catches: one that stays in the heap when it is moved, and comes up twice."""
    queue = WaitingQueue(look_ahead)
    known: dict[int, Sequence] = {}
    for place, priority in events:
        if place not in known:
            known[place] = sequence(f"{place}", place)
            queue.add(known[place])
        else:
            queue.move(known[place], (priority, place))
        queue.check_integrity()
        assert queue.least_urgent == max(each.rank[0] for each in known.values())
    for each in sorted(known.values(), key=lambda each: each.rank):
        assert queue.window[0] is each
        queue.remove(each)
    assert queue.least_urgent is None


def test_the_longest_waiting_of_less_urgent_ones_is_found_wherever_it_stands() -> None:
    queue = WaitingQueue(2)
    for place, priority in enumerate((0, 5, -1, -1, 2, -1)):
        each = sequence(str(place), place)
        each.rank = (priority, place)
        queue.add(each)
    found = [queue.longest_waiting(above) for above in (-2, -1, 0, 2, 5)]
    assert [each and each.request_id for each in found] == ["0", "0", "1", "1", None]


def test_an_id_is_found_wherever_it_stands() -> None:
    queue = WaitingQueue(2)
    sequences = [sequence(str(n), n) for n in range(5)]
    for each in sequences:
        queue.add(each)
    assert [queue.get(str(n)) for n in range(5)] == sequences
    assert list(queue) == ["0", "1", "2", "3", "4"]
    assert "4" in queue
    assert queue.get("5") is None

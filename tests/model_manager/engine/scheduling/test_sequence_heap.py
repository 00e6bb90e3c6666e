from __future__ import annotations

from millrace.model_manager.engine.scheduling.sequence import SequenceStatus
from millrace.model_manager.engine.scheduling.sequence_heap import SequenceHeap
from tests.model_manager.engine.scheduling.test_waiting_queue import sequence


def test_a_heap_gives_the_smallest_key_first_and_none_that_is_finished() -> None:
    heap = SequenceHeap()
    sequences = [sequence(str(n), n) for n in range(5)]
    for n in (3, 1, 4, 0, 2):
        heap.push((n / 2, 0), sequences[n])
    sequences[0].status = SequenceStatus.FINISHED
    assert heap.pop(most=0.4) is None
    assert [heap.pop(most=1.5), heap.pop(most=1.5)] == [sequences[1], sequences[2]]
    assert heap.pop(most=1.0) is None
    assert [heap.pop(), heap.pop(), heap.pop()] == [sequences[3], sequences[4], None]


def test_a_heap_does_not_grow_with_what_is_over() -> None:
    heap = SequenceHeap()
    for n in range(10_000):
        each = sequence(str(n), n)
        heap.push((n, 0), each)
        each.status = SequenceStatus.FINISHED
    assert len(heap._heap) <= 64

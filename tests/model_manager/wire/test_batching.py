"""Messages of many outputs stay within what the transport takes."""

from __future__ import annotations

from model_manager.wire.batching import MOST_TOKENS, output_batches
from model_manager.wire.messages import FinishReason, Output, Timings


def _vector(number: int, size: int) -> Output:
    times = Timings(0.0, 0.0, 0.0)
    return Output(str(number), [], FinishReason.STOP, times, prompt_tokens=1, embedding=bytes(4 * size))


def test_vectors_count_by_their_bytes() -> None:
    outputs = [_vector(number, 4096) for number in range(1000)]
    batches = [*output_batches(outputs)]
    assert [output for batch in batches for output in batch] == outputs
    assert len(batches) > 1
    assert all(sum(len(output.embedding or b"") for output in batch) <= 5 * MOST_TOKENS for batch in batches)


def test_a_single_output_too_large_comes_alone() -> None:
    large, small = _vector(0, 2 * MOST_TOKENS), _vector(1, 4)
    assert [*output_batches([small, large, small])] == [[small], [large], [small]]

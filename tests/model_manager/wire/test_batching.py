"""Messages of many outputs stay within what the transport takes."""

from __future__ import annotations

from model_manager.wire.batching import MOST_TOKENS, output_batches, request_batches
from model_manager.wire.constraint import MOST_CHARACTERS, Constraint
from model_manager.wire.messages import FinishReason, Output, Request, Submit, Timings
from model_manager.wire.sampling import SamplingParams
from model_manager.wire.transport import encode


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


def test_requests_with_large_constraints_fit_into_their_messages() -> None:
    params = SamplingParams(constraint=Constraint(grammar="é" * MOST_CHARACTERS))
    requests = [Request(str(number), [1, 2, 3], params) for number in range(40)]
    batches = [*request_batches(requests)]
    assert [request for batch in batches for request in batch] == requests
    for batch in batches:
        encode(Submit("model", batch))  # raises ProtocolError over the transport's limit

"""Messages of many outputs stay within what the transport takes."""

from __future__ import annotations

import msgspec

from millrace.model_manager.wire.batching import (
    MOST_TOKENS,
    MOST_TOKENS_ALONE,
    failure_batches,
    fits_alone,
    output_batches,
    request_batches,
)
from millrace.model_manager.wire.constraint import MOST_CHARACTERS, Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.messages import Results, Submit
from millrace.model_manager.wire.request import Failure, FinishReason, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from millrace.model_manager.wire.transport import encode


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


def test_the_largest_output_that_fits_alone_is_taken_by_the_transport() -> None:
    output = _vector(0, 5 * MOST_TOKENS_ALONE // 4)
    assert fits_alone(output)
    assert not fits_alone(_vector(0, 5 * MOST_TOKENS_ALONE // 4 + 2))
    encode(Results("model", outputs=[output]))  # raises ProtocolError over the transport's limit


def test_alternatives_of_a_long_prompt_that_fit_alone_are_taken_by_the_transport() -> None:
    places = MOST_TOKENS_ALONE // (2 * 42)
    each = Logprobs([-1.5] * places, [False] * places, [[2**31] * 20] * places, [[-1.5] * 20] * places)
    output = msgspec.structs.replace(_vector(0, 0), prompt_logprobs=each)
    assert fits_alone(output)
    assert not fits_alone(msgspec.structs.replace(output, logprobs=each))
    encode(Results("model", outputs=[output]))


def test_many_failures_with_long_texts_fit_into_their_messages() -> None:
    failures = [Failure(str(number), InvalidRequest("é" * 2**16).info()) for number in range(1000)]
    batches = [*failure_batches(failures)]
    assert [failure for batch in batches for failure in batch] == failures
    for batch in batches:
        encode(Results("model", failures=batch))

"""Many requests or results in few messages; none can come near the transport's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .logprobs import Logprobs
from .request import Failure, NewTokens, Output, Request

MOST_TOKENS = 2**20
"""Most tokens in one message; a token id takes up to 5 bytes, any other number up to 9, and counts twice."""
MOST_ITEMS = 4096
MOST_TOKENS_ALONE = 12 * 2**20
"""Most tokens of one output: more would exceed the transport's limit."""
_BYTES_PER_TOKEN = 5

T = TypeVar("T")


def request_batches(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Requests in order, as many at a time as one message takes; a single larger one comes alone."""
    return _batches(requests, _request_size)


def output_batches(outputs: Iterable[Output]) -> Iterator[list[Output]]:
    """Outputs in order, as many at a time as one message takes; a single larger one comes alone."""
    return _batches(outputs, _output_size)


def failure_batches(failures: Iterable[Failure]) -> Iterator[list[Failure]]:
    """Failures in order, as many at a time as one message takes."""
    return _batches(failures, _failure_size)


def progress_batches(tokens: Iterable[NewTokens]) -> Iterator[list[NewTokens]]:
    """New tokens in order, as many at a time as one message takes; more of a single request come alone."""
    return _batches(tokens, lambda each: len(each.token_ids) + _tokens_worth(each.logprobs))


def fits_alone(output: Output) -> bool:
    """Whether a message can take it."""
    return _output_size(output) <= MOST_TOKENS_ALONE


def fits_among_others(output: Output) -> bool:
    """Whether a message that takes it takes more besides."""
    return _output_size(output) <= MOST_TOKENS


def _request_size(request: Request) -> int:
    params = request.params
    listed = 3 * len(params.logit_bias) + len(params.allowed_token_ids or ())
    tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
    constraint = 0 if params.constraint is None else len(params.constraint.key()) // _BYTES_PER_TOKEN
    text = len(request.text) + len(request.output_text) + sum(len(repr(each)) for each in request.messages)
    return tokens + listed + constraint + text + _tokens_worth(request.output_logprobs)


def _output_size(output: Output) -> int:
    numbers = _tokens_worth(output.logprobs) + _tokens_worth(output.prompt_logprobs)
    return len(output.token_ids) + numbers + len(output.text) + len(output.embedding or b"") // _BYTES_PER_TOKEN


def _failure_size(failure: Failure) -> int:
    return len(failure.error.message) + len(failure.token_ids)  # up to 4 bytes a character


def _tokens_worth(logprobs: Logprobs | None) -> int:
    return 0 if logprobs is None else 2 * logprobs.num_numbers


def _batches(items: Iterable[T], tokens_of: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    tokens = 0
    for item in items:
        count = tokens_of(item)
        if batch and (tokens + count > MOST_TOKENS or len(batch) == MOST_ITEMS):
            yield batch
            batch, tokens = [], 0
        batch.append(item)
        tokens += count
    if batch:
        yield batch

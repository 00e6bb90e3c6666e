"""Many requests or results in few messages, none of which can come near the transport's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from model_manager.wire.messages import Output, Request

MOST_TOKENS = 2**20
"""In one message; a token id takes up to 5 bytes."""
MOST_ITEMS = 4096

T = TypeVar("T")


def request_batches(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Requests in order, as many at a time as one message takes; a single larger one comes alone."""
    return _batches(requests, lambda request: len(request.prompt_token_ids) + len(request.output_token_ids))


def output_batches(outputs: Iterable[Output]) -> Iterator[list[Output]]:
    """Outputs in order, as many at a time as one message takes; a single larger one comes alone."""
    return _batches(outputs, lambda output: len(output.token_ids))


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

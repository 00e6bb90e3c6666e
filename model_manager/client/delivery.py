"""Completes futures with the answers to their requests, as results or errors. Knows no socket and no thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from ..wire.errors import MillraceError, RequestAborted, RequestError
from ..wire.messages import Failure, FinishReason, Output
from .generation import Decoder, answer_of, partial_text
from .ledger import Pending, Waiter


def fail(waiters: Iterable[Waiter], error: BaseException) -> None:
    """Fail the waiters' futures with the error, except cancelled ones."""
    for waiter in waiters:
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_exception(error)


def deliver(answer: Output | Failure, pending: Pending, decoder: Decoder | None) -> None:
    """Complete the futures of all that wait for a request; `decoder` makes text of its tokens."""
    if isinstance(answer, Failure):
        fail(pending.waiters, _error(answer, pending, decoder))
    elif answer.finish_reason is FinishReason.ABORT:
        fail(pending.waiters, RequestAborted("cancelled"))
    else:
        now = time.monotonic()
        for waiter in pending.waiters:
            _complete(waiter, answer, pending, decoder, now)


def _error(failure: Failure, pending: Pending, decoder: Decoder | None) -> MillraceError:
    """The failure's error. If it concerns the request alone, it carries the text so far."""
    error = failure.error.exception()
    if decoder is not None and isinstance(error, RequestError) and failure.token_ids:
        with contextlib.suppress(Exception):  # a tokenizer's, about these tokens alone: the error counts
            error.partial = partial_text(failure.token_ids, pending.request.params, decoder)
    return error


def _complete(waiter: Waiter, output: Output, pending: Pending, decoder: Decoder | None, now: float) -> None:
    try:
        result = answer_of(output, pending.request, decoder, now - waiter.since)
    except Exception as error:  # a tokenizer's, about these tokens alone
        fail([waiter], error)
        return
    if waiter.future.set_running_or_notify_cancel():
        waiter.future.set_result(result)

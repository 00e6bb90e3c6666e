"""Answers to those who wait for them, as results or as errors. Knows futures; no socket, no thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from ..wire.errors import MillraceError, RequestAborted, RequestError
from ..wire.messages import Failure, FinishReason, Output
from .generation import Decoder, answer_of, partial_text
from .ledger import Pending, Waiter


def fail(waiters: Iterable[Waiter], error: BaseException) -> None:
    """Their futures raise the error, but for those that were cancelled."""
    for waiter in waiters:
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_exception(error)


def deliver(answer: Output | Failure, pending: Pending, decoder: Decoder | None) -> None:
    """The answer, as text where it is one, to all who wait for that request."""
    if isinstance(answer, Failure):
        fail(pending.waiters, _error(answer, pending, decoder))
    elif answer.finish_reason is FinishReason.ABORT:
        fail(pending.waiters, RequestAborted("cancelled"))
    else:
        now = time.monotonic()
        for waiter in pending.waiters:
            _complete(waiter, answer, pending, decoder, now)


def _error(failure: Failure, pending: Pending, decoder: Decoder | None) -> MillraceError:
    """With the text so far, where the request is what failed."""
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

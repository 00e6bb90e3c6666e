"""Completes futures with the answers to their requests, as results or errors, and hands over what streams before.

Knows no socket and no thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from msgspec.structs import replace

from ..wire.errors import MillraceError, RequestAborted, RequestError
from ..wire.request import Failure, FinishReason, Output
from ..wire.timings import Setback
from .deltas import Generated
from .generation import Decoder, answer_of, partial_text
from .ledger import Pending, Waiter


def fail(waiters: Iterable[Waiter], error: BaseException) -> None:
    """Fail the waiters' futures with the error, except cancelled ones."""
    for waiter in waiters:
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_exception(error)


def advance(generated: Generated, waiters: Iterable[Waiter]) -> None:
    """Hand over the tokens that an unfinished answer has got to those who want them."""
    for waiter in waiters:
        if waiter.deltas is not None and not waiter.future.done():
            try:
                waiter.deltas.advance(generated)
            except Exception:  # a tokenizer's, about these tokens alone
                waiter.deltas.hold()


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
    if isinstance(error, RequestError):
        error.setbacks = tuple(failure.setbacks)
    if decoder is not None and isinstance(error, RequestError) and failure.token_ids:
        with contextlib.suppress(Exception):  # a tokenizer's, about these tokens alone: the error counts
            error.partial = partial_text(failure.token_ids, pending.request.params, decoder)
    return error


def _complete(waiter: Waiter, output: Output, pending: Pending, decoder: Decoder | None, now: float) -> None:
    if not waiter.future.set_running_or_notify_cancel():
        return
    try:
        result = answer_of(_told(output, pending, waiter), pending.request, decoder, now - waiter.since)
        if waiter.deltas is not None:
            waiter.deltas.finish(result)
    except Exception as error:  # a tokenizer's, or of a stream, about these tokens alone
        waiter.future.set_exception(error)
    else:
        waiter.future.set_result(result)


def _told(output: Output, pending: Pending, waiter: Waiter) -> Output:
    """The output, with a setback for each manager lost before it came, and the tokens computed again for that."""
    if not pending.lost:
        return output
    lost = [Setback("manager_lost", at - waiter.since) for at in pending.lost]
    again = output.recomputed_tokens + max(0, pending.lost_tokens - output.cached_tokens)
    return replace(output, setbacks=[*lost, *output.setbacks], recomputed_tokens=again)

"""Times of a request that ended, from its arrival at the server. An engine's begin when the manager receives the
request of an answer, which waits here for a credit; each answer of a request may wait for its own.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.model_manager.wire.job_progress import spans

from ..http.observers import Observed, ObservedAnswer


class Phases(NamedTuple):
    """Seconds, one after the other."""

    queued: float
    """From the request's arrival to the first step."""
    prefill: float
    """From the first step to the first token, or to the end if no token is generated."""
    decode: float
    """From the first token to the last."""


def phases_of_answer(request: Observed, answer: ObservedAnswer) -> Phases:
    """The phases of one answer."""
    queued, prefill, decode = spans(answer.output.timings, answer.output.num_generated)
    return Phases(max(_receipt(answer) - request.since, 0.0) + queued, prefill, decode)


def phases(request: Observed) -> Phases:
    """The phases of a request with answers, as one: queued until the first step of any, in prefill until the first
    token of any, in decode until the last token of all.
    """
    each = [phases_of_answer(request, answer) for answer in request.answers]
    began = min(phase.queued for phase in each)
    ended = max(sum(phase) for phase in each)
    first = to_first_token(request)
    first = ended if first is None else min(max(first, began), ended)
    return Phases(began, first - began, ended - first)


def to_first_token(request: Observed) -> float | None:
    """Seconds to the first token of any answer, as seen in a stream, else by the engine's times; None without one."""
    generating = [answer for answer in request.answers if answer.output.num_generated]
    if not generating:
        return None
    if request.first_token is not None:
        return request.first_token - request.since
    return min(sum(phases_of_answer(request, answer)[:2]) for answer in generating)


def _receipt(answer: ObservedAnswer) -> float:
    """When the manager received the request of an answer, at the latest: what the engine saw was seen here later."""
    timings = answer.output.timings
    at_end = answer.ended - timings.finished
    return at_end if answer.first_token is None else min(at_end, answer.first_token - timings.first_token)

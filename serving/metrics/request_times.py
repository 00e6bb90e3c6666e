"""Times of a request that ended, from its arrival at the server: the engine's begin when the manager receives it."""

from __future__ import annotations

from millrace.model_manager.wire.job_progress import spans
from millrace.model_manager.wire.request import Output

from ..http.observers import Observed


def longest(request: Observed) -> Output:
    """The one of several answers that took the longest; it tells the request's times."""
    return max(request.outputs, key=lambda output: output.timings.finished)


def before_receipt(request: Observed) -> float:
    """Seconds from the arrival until the manager received the answer's request, which waits here for a credit."""
    output = longest(request)
    queued, prefill, decode = spans(output.timings, output.num_generated)
    first = request.seconds - decode if request.first_token is None else request.first_token - request.since
    return max(first - prefill - queued, 0.0)

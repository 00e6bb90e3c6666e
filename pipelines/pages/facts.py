"""Facts of a written row that plots and filters need, for every task and format. Its texts are not among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from .texts import as_text, harmless

COLUMNS = (
    *("id", "finish_reason", "usage", "timings", "confidences", "probabilities", "labels", "prompt_hash"),
    *("error", "reason", "response", "custom_id"),
)
"""The columns that are looked at."""
ENDINGS = ("finish_reason", "confidences", "probabilities", "labels", "error", "reason", "response")
"""The columns that filters need, of rows that say how they ended."""
Light = msgspec.defstruct(
    "Light", [(name, Any, None) for name in COLUMNS], module=__name__
)  # everything else in a line is skipped
_KIND = 60
"""Characters of a kind of ending: classes of errors and finish reasons are shorter."""
_ROUNDING = 1e-3
"""How far sums of floats may lead beyond the largest probability."""
_MOST_SECONDS = 1e9
"""Seconds of a request, at most: what is longer is no time."""
NO_REASON = "answered"
"""How an answered row ended that has no finish reason, as rows of score, embed, extract and classify."""
UNREADABLE = "unreadable"
"""What a row that is no row counts as."""


class Facts(NamedTuple):
    """What one row says of its request; None where it says nothing."""

    failed: bool = False
    ended: str = ""
    """The finish reason, or the class of the error."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    latency: float | None = None
    """Seconds."""
    first_token: float | None = None
    """Seconds."""
    confidence: float | None = None
    """The lowest probability of the row's values, 0 to 1."""

    @property
    def kind(self) -> str:
        """`ended` as pages and filters name it."""
        return " ".join(harmless(self.ended[:_KIND]).split())


def facts_of(row: Mapping[str, Any]) -> Facts:
    """What is known of a row in any of the shapes of output_rows.py and openai_rows.py; odd values count as missing."""
    if _is_extracted(row):
        return Facts(False, NO_REASON, *_spent(row.get("usage"), row.get("timings")), _lowest(row["confidences"]))
    error = row.get("error")
    if isinstance(error, str):
        return Facts(True, error)
    if isinstance(error, Mapping):
        return Facts(True, str(error.get("kind") or error.get("code") or "error"))
    if isinstance(row.get("response"), Mapping):
        return _of_openai(row["response"])
    ended = row.get("finish_reason")
    ended = UNREADABLE if ended is None and row.get("usage") is None else _reason(ended)
    confidence = _likeliest(row) if row.get("probabilities") is not None else None
    failed = ended in ("error", UNREADABLE)
    return Facts(failed, ended, *_spent(row.get("usage"), row.get("timings")), confidence)


def _reason(given: Any) -> str:
    """A finish reason as it stands, whatever it is."""
    if given is None:
        return NO_REASON
    return given if isinstance(given, str) else as_text(given)


def _is_extracted(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("confidences"), Mapping)


def _of_openai(response: Mapping[str, Any]) -> Facts:
    body = response.get("body")
    body = body if isinstance(body, Mapping) else {}
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    ended = first.get("finish_reason")
    usage = body.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Facts(False, _reason(ended), *_spent({"cached_tokens": cached, **usage}, None))


def _spent(usage: Any, timings: Any) -> tuple[int | None, int | None, int | None, float | None, float | None]:
    usage = usage if isinstance(usage, Mapping) else {}
    timings = timings if isinstance(timings, Mapping) else {}
    return (
        _whole(usage.get("prompt_tokens")),
        _whole(usage.get("cached_tokens")),
        _whole(usage.get("completion_tokens")),
        _seconds(timings.get("latency")),
        _seconds(timings.get("first_token")),
    )


def probability(logprob: Any) -> float | None:
    """The probability for a mean log-probability; None if the value is no log-probability."""
    found = finite(logprob)
    return None if found is None or found > _ROUNDING else math.exp(min(found, 0.0))


def share(value: Any) -> float | None:
    """A probability from 0 to 1; None for what is none."""
    found = finite(value)
    return min(found, 1.0) if found is not None and 0 <= found <= 1 + _ROUNDING else None


def _lowest(confidences: Mapping[str, Any]) -> float | None:
    found = [each for value in confidences.values() if (each := probability(value)) is not None]
    return min(found, default=None)


def _likeliest(row: Mapping[str, Any]) -> float | None:
    """How sure the model is about the label: the highest probability; with several labels, the lowest one."""
    probabilities = row["probabilities"]
    if not isinstance(probabilities, Mapping):
        return None
    labels = row.get("labels")
    given = [probabilities.get(each) for each in labels if isinstance(each, str)] if isinstance(labels, list) else []
    found = [each for value in given if (each := share(value)) is not None]
    everything = [each for value in probabilities.values() if (each := share(value)) is not None]
    return min(found) if found else max(everything, default=None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _seconds(value: Any) -> float | None:
    found = finite(value)
    return found if found is not None and 0 <= found < _MOST_SECONDS else None


def finite(value: Any) -> float | None:
    """A number that a float can hold; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return found if math.isfinite(found) else None

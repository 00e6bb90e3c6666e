"""Values of Beam's rows and the plain ones that millrace takes; results as rows with a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam.typehints.row_type import RowTypeConstraint

from millrace.model_manager.wire.errors import ConfigError

from ..elements.completions import Completion
from ..elements.task_results import ContinuationScore, Embedded, Scored

_USED = [("model", str), ("prompt_tokens", int), ("cached_tokens", int)]
COMPLETION = RowTypeConstraint.from_fields(
    [
        ("text", str),
        ("finish_reason", str),
        ("stop_reason", str | None),
        ("closed_at", int | None),
        ("choices", Sequence[str]),
        ("completion_tokens", int),
        *_USED,
    ]
)
"""Where several answers were asked for, `choices` has them all, `text` the first."""
_SCORE = RowTypeConstraint.from_fields(
    [("continuation", str), ("logprob", float), ("is_greedy", bool), ("num_tokens", int)]
)
SCORED = RowTypeConstraint.from_fields([("scores", Sequence[_SCORE]), *_USED])  # type: ignore[valid-type]
EMBEDDED = RowTypeConstraint.from_fields([("embedding", Sequence[float]), *_USED])


def completion_row(completion: Completion) -> beam.Row:
    """A row of COMPLETION."""
    return beam.Row(
        text=completion.text,
        finish_reason=str(completion.finish_reason),
        stop_reason=None if completion.stop_reason is None else str(completion.stop_reason),
        closed_at=completion.closed_at,
        choices=[choice.text for choice in completion.choices],
        completion_tokens=completion.usage.completion_tokens,
        **_used(completion),
    )


def scored_row(scored: Scored) -> beam.Row:
    """A row of SCORED."""
    return beam.Row(scores=[_score_row(score) for score in scored.scores], **_used(scored))


def _score_row(score: ContinuationScore) -> beam.Row:
    given = score.continuation
    return beam.Row(
        continuation=given if isinstance(given, str) else msgspec.json.encode(given).decode(),
        logprob=score.logprob,
        is_greedy=score.is_greedy,
        num_tokens=score.num_tokens,
    )


def embedded_row(embedded: Embedded) -> beam.Row:
    """A row of EMBEDDED."""
    return beam.Row(embedding=list(embedded.embedding), **_used(embedded))


def _used(result: Completion | Scored | Embedded) -> dict[str, Any]:
    usage = result.usage
    return {"model": result.model, "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens}


def row_type(element_type: Any) -> RowTypeConstraint:
    """The schema of a collection's rows; raises ConfigError where it has none."""
    found = (
        element_type if isinstance(element_type, RowTypeConstraint) else RowTypeConstraint.from_user_type(element_type)
    )
    if found is None:
        raise ConfigError(f"elements of type {element_type}: takes rows with a schema")
    return found


def plain(value: Any) -> Any:
    """Rows and mappings as dicts without what is null, sequences as lists, numpy's numbers as Python's."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value

"""Answers under a constraint that `max_tokens` has cut: half of one is no answer. Knows no dialect and no server.

Servers hold an answer to its constraint token by token, and end it at `max_tokens` wherever it is.
"""

from __future__ import annotations

import json

from ...wire.constraint import Constraint
from ...wire.errors import InvalidRequest, not_complete
from ...wire.request import FinishReason, Request
from .dialects import ServerAnswer


def is_cut(request: Request, answer: ServerAnswer) -> bool:
    """Whether an answer was cut before it met its request's constraint; raises ConstraintNotMet if that is no answer to
    the request.
    """
    constraint = request.params.constraint
    if constraint is None or answer.finish_reason is not FinishReason.LENGTH or _is_whole(constraint, answer.text):
        return False
    if request.may_be_cut:
        return True
    raise not_complete(answer.num_tokens or request.params.max_tokens, request.params.max_tokens)


def _is_whole(constraint: Constraint, text: str) -> bool:
    """Whether a text that the server held to the constraint may end where it does."""
    match constraint.kind:
        case "json" | "json_schema":
            return _is_whole_json(constraint, text)
        case "choice":
            return text in (constraint.choice or ())
        case _:
            return _may_end(constraint, text)


def _is_whole_json(constraint: Constraint, text: str) -> bool:
    """All values but numbers show their end."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or _may_end(constraint, text.strip())


def _may_end(constraint: Constraint, text: str) -> bool:
    from ...grammars.compiling import check, is_output  # a library of grammars, which most jobs do without

    try:
        check(constraint)
    except InvalidRequest:
        return False
    return is_output(constraint, text.encode())

"""Prompts as OpenAI's bodies have them. Knows no model: a client makes tokens of what comes out of here."""

from __future__ import annotations

from typing import Any

from millrace.model_manager.wire.errors import InvalidRequest

MOST_PROMPTS = 2048
_TAKES = "takes a text, a list of texts, token ids, or a list of lists of token ids"


def prompts_of(name: str, given: Any) -> list[str | list[int]]:
    """Each prompt of a field; raises InvalidRequest, which names the field."""
    if isinstance(given, str) or _are_ids(given):
        return [given]
    if not isinstance(given, list) or not (all(isinstance(each, str) for each in given) or all(map(_are_ids, given))):
        raise InvalidRequest(f"{name}: {_TAKES}")
    if not 0 < len(given) <= MOST_PROMPTS:
        raise InvalidRequest(f"{name}: takes 1 to {MOST_PROMPTS} prompts, got {len(given)}")
    return given


def _are_ids(given: Any) -> bool:
    """True and false are integers to Python alone."""
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)

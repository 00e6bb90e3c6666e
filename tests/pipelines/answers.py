"""Commands that ask a manager, which may stand still for longer than they wait."""

from __future__ import annotations

from millrace.pipelines.cli import dispatch
from tests.waiting import eventually


def answered(*words: str) -> None:
    """Give the command until it ends with 0."""
    eventually(lambda: dispatch(words) == 0, " ".join(words))

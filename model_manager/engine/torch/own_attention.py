"""A transformers model for a while with an attention that is not ours: its own, or one that only notes its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def own_implementation(model: Any) -> str:
    """What transformers itself lets `model` attend with where nobody asks for anything."""
    name: str = model.get_correct_attn_implementation(None)
    return name


@contextmanager
def attending_as(model: Any, implementation: str) -> Iterator[None]:
    """Within, `model` attends by that name of transformers'; after, as before."""
    before = model.config._attn_implementation
    model.config._attn_implementation = implementation  # of its sub-configs too
    try:
        yield
    finally:
        model.config._attn_implementation = before

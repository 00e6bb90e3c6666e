"""Runs a transformers model for a while with another attention: its own, or one that records its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def own_implementation(model: Any) -> str:
    """The attention that transformers uses for `model` by default."""
    name: str = model.get_correct_attn_implementation(None)
    return name


@contextmanager
def attending_as(model: Any, implementation: str) -> Iterator[None]:
    """Within, `model` uses the attention of this name in transformers; afterwards its former one.

    Not by `set_attn_implementation`: it leaves a model as it is whose code does not look the name up as it expects.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = implementation  # sets its sub-configs, too
    try:
        yield
    finally:
        model.config._attn_implementation = before

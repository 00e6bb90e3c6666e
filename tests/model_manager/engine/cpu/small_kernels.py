"""Kernels that are compiled in a moment."""

from __future__ import annotations

from millrace.model_manager.engine.cpu.vector_ops import fetch_add


def one(address: int) -> None:
    """Count a call."""
    fetch_add(address)


def two(address: int) -> None:
    """Count a call twice."""
    fetch_add(address)
    fetch_add(address)


def three(address: int) -> None:
    """Count a call three times."""
    fetch_add(address)
    fetch_add(address)
    fetch_add(address)


ALL = (one, two, three)

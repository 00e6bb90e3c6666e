"""Fixtures of the manager's tests."""

from tests.model_manager.manager.machine import machine

__all__ = ["machine"]

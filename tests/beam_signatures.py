"""Signatures of a DoFn's methods, read once a test run: Beam reads each some thirty times as it builds a small job.

Reading them is a quarter of such a job's processor time. `read_once` changes Beam in this process alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any

from apache_beam.transforms import core


def read_once() -> None:
    """Has Beam keep the signatures of methods, by their functions; it reads those of all else as before."""
    read: Callable[[Any], inspect.Signature] = core.get_signature
    of_function = cache(lambda function: read(MethodType(function, object)))

    def get_signature(func: Any) -> inspect.Signature:
        is_plain = isinstance(func, MethodType) and type(func.__func__) is FunctionType
        return of_function(func.__func__) if is_plain else read(func)

    core.get_signature = get_signature

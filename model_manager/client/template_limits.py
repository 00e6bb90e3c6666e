"""Jinja's sandbox with limits of time and size: a chat template is a program that comes with a model.

Each pass of a loop, each call and each output looks at the clock. Texts that are written, values that `set` names and
arguments of calls are counted. Most operations make a result in proportion to their arguments; those that make much of
little (`*`, `**`, widths, `replace`, `join`) are refused before they run if the result would be too large. Knows no
messages.

Not limited: one operation that takes long and makes nothing, such as a comparison of long lists.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_SECONDS = 2.0
"""Processor time of one conversation."""
MOST_CHARACTERS = 2**25
"""Characters, and elements of lists, that one conversation's template may write and name in all."""
_ELEMENT = 32
"""Characters that each element of a list counts as if it is not a text, since looking at it takes time."""
_MOST_BITS = 4096
"""Most bits of a product or a power of integers."""
_BETWEEN_LOOKS = 15
"""Steps between two looks at the clock, as a mask of bits."""
_LONG_NUMBER, _NUMBER, _FIELD_IN_FIELD = re.compile(r"\d{6}"), re.compile(r"\d+"), re.compile(r"\{[^{}]*\{")
_MOST_JOINED = 16
"""An expression may join so many operands with `~` and `+` before its size is checked."""
_WIDENING = frozenset(
    "center ljust rjust zfill indent wordwrap batch slice round xmlattr urlize strip lstrip rstrip trim".split()
)
"""Methods and filters whose output, or work, can be as large as the product of the sizes of their arguments."""
_FORBIDDEN = frozenset(("translate", "expandtabs", "to_bytes", "encode"))
"""Methods that no chat template needs, and whose output can be far larger than their input. `encode` and `to_bytes`
give bytes, whose methods are not limited.
"""
_PASS, _NAMED = "millrace_pass", "millrace_named"
"""Names of the filters that `_parse` puts into each template."""


class LimitExceeded(Exception):
    """The text says which limit."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Within `limited`, templates raise LimitExceeded at the first limit that they reach; one renders at a time."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        # the optimizer would compute constant expressions as the template is compiled, where no limit holds
        super().__init__(**options, finalize=self._written, optimized=False)
        self._lock = threading.Lock()
        self._begin(0.0)
        for name in _GROWTH.keys() & self.filters.keys():
            self.add_filter(name, self.filters[name])
        self.filters[_PASS], self.filters[_NAMED] = _unfolded(self._pass), _unfolded(self._named)
        del self.globals["lipsum"], self.filters["pprint"]

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Render one conversation within the limits."""
        with self._lock:
            self._begin(time.thread_time() + MOST_SECONDS)
            yield

    def _begin(self, ends: float) -> None:
        self._ends, self._left, self._steps = ends, MOST_CHARACTERS, 0

    def add_filter(self, name: str, made: Callable[..., Any]) -> None:
        """Add a filter, within the limits. It keeps the attributes that tell Jinja which arguments to pass."""

        @functools.wraps(made)
        def limited(*args: Any, **kwargs: Any) -> Any:
            args = _listed(args)
            self._judge(name, [*args, *kwargs.values()])
            return self._written(made(*args, **kwargs))

        self.filters[name] = limited

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _FORBIDDEN and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as Jinja has it)
        for each in (*args, *kwargs.values()) if kwargs else args:
            __self._named(each)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        name = getattr(method, "__name__", "")
        if name in _GROWTH:
            args = _listed(args)
            __self._judge(name, [getattr(method, "__self__", None), *args, *kwargs.values()])
        return __self._written(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._judge(operator, (left, right))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))]:
            _count_passes(node)
        for assigned in [*tree.find_all(nodes.Assign)]:
            assigned.node = _filtered(assigned.node, _NAMED)
        for joined in [*tree.find_all((nodes.Concat, nodes.Add))]:
            _count_joined(joined)
        tree.set_environment(self)
        return tree

    def _look(self) -> None:
        if self._ends and time.thread_time() > self._ends:
            raise LimitExceeded(f"at most {MOST_SECONDS:g} seconds of processor time for a conversation")

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _too_much()

    def _judge(self, name: str, given: Sequence[Any]) -> None:
        """Raises LimitExceeded if the method, filter or operator would make too much of its arguments."""
        self._look()
        growth = _GROWTH[name](given)
        self._count(growth if growth > MOST_CHARACTERS else 0)
        for each in given:
            self._named(each)

    def _written(self, value: Any) -> Any:
        """The value, counted if it is a text or a list. Looks at the clock: whatever takes time calls this."""
        self._steps += 1
        if not self._steps & _BETWEEN_LOOKS:
            self._look()
        if type(value) is str:
            self._left -= len(value)
            if self._left < 0:
                raise _too_much()
        elif type(value) is list:
            self._count(_ELEMENT * len(value))
        return value

    def _named(self, value: Any) -> Any:
        """The value, counted if it may become large; a list with all that it holds."""
        if isinstance(value, str):
            self._count(len(value))
        elif isinstance(value, list | tuple | dict):
            self._count(_size(value))
        return value

    def _pass(self, characters: int) -> bool:
        """Count one pass of a loop or macro, which writes so many characters of the template's own text."""
        self._written(None)
        self._count(characters)
        return True


def _unfolded(made: Callable[[Any], Any]) -> Callable[..., Any]:
    """A filter that is not applied to constants when the template is compiled."""
    return pass_context(lambda _context, value: made(value))


def _too_much() -> LimitExceeded:
    return LimitExceeded(f"at most {MOST_CHARACTERS:,} characters to write and make for a conversation")


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments; generators and ranges become lists, so that their elements can be counted."""
    return tuple(list(each) if isinstance(each, GeneratorType | range) else each for each in args)


def _size(value: Any) -> int:
    """Characters of a text, or of all texts in a list, each as often as the list holds it. Other values are small."""
    if isinstance(value, str):
        return len(value)
    size, pending = 0, [value]
    while pending and size <= MOST_CHARACTERS:
        each = pending.pop()
        if isinstance(each, dict):
            pending += each.keys()
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each
        size += len(each) if isinstance(each, str) else _ELEMENT
    return size


def _count_passes(node: Any) -> None:
    """Have each pass of a loop, macro or block (`node`) counted, also the passes that a loop's condition skips."""
    written = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
    count = _filtered(nodes.Const(written), _PASS)
    if isinstance(node, nodes.For) and node.test is not None:
        node.test = nodes.And(count, node.test)
    else:
        node.body.insert(0, nodes.ExprStmt(count))
    node.set_lineno(node.lineno)


def _count_joined(node: Any) -> None:
    """`node`: a text made by `~` or `+`. Have the operands counted before they are joined, if they are many."""
    joins = [node, *node.find_all((nodes.Concat, nodes.Add))]
    if sum(len(each.nodes) if isinstance(each, nodes.Concat) else 1 for each in joins) <= _MOST_JOINED:
        return
    if isinstance(node, nodes.Concat):
        node.nodes = [_counted(each) for each in node.nodes]
    else:
        node.left, node.right = _counted(node.left), _counted(node.right)


def _counted(operand: Any) -> Any:
    """What is joined is counted by its own operands; Python has a limit of its own for how deep calls are nested."""
    return operand if isinstance(operand, nodes.Concat | nodes.Add) else _filtered(operand, _NAMED)


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


# ── the largest size of a result, known before it is made ────────────────────────────────────────────────────────────


def _of_product(given: Sequence[Any]) -> int:
    """Size of a value that a number, or another text, widens."""
    first, *others = [each for each in given if isinstance(each, str | list | tuple | dict | int | float)] or [0]
    factors = [abs(each) if isinstance(each, int) else _size(each) for each in others if not isinstance(each, float)]
    return max(len(first) if isinstance(first, str) else _size(first), 1) * max(factors, default=1)


def _of_join(given: Sequence[Any]) -> int:
    texts = [len(each) for each in given if isinstance(each, str)]
    lists = [each for each in given if isinstance(each, list | tuple | dict)]
    if lists:
        return _size(lists[0]) + len(lists[0]) * (texts[0] if texts else 0)
    return texts[0] * texts[1] if len(texts) > 1 else 0


def _of_sum(given: Sequence[Any]) -> int:
    """Size of all lists that a sum of lists makes: one after each addend."""
    added = next((each for each in given if isinstance(each, list | tuple | dict)), ())
    return len(added) * _size(added) if any(isinstance(each, list | tuple) for each in added) else 0


def _of_replace(given: Sequence[Any]) -> int:
    texts = [len(each) for each in given if isinstance(each, str)]
    return (texts[0] // max(texts[1], 1) + 1) * texts[2] if len(texts) > 2 else 0


def _of_format(given: Sequence[Any]) -> int:
    """Largest size of a formatted text: every field of the layout is as wide as the widest value or number."""
    layout = next((each for each in given if isinstance(each, str)), "")
    if _LONG_NUMBER.search(layout) or _FIELD_IN_FIELD.search(layout):
        return MOST_CHARACTERS + 1
    values = [each for value in given for each in (value if isinstance(value, tuple) else (value,))]
    widths = [int(number) for number in _NUMBER.findall(layout)]
    widths += [abs(each) for each in values if isinstance(each, int)] if "*" in layout else []
    sizes = [_size(each) for each in values if isinstance(each, str | list | dict) and each is not layout]
    return max(layout.count("%"), layout.count("{")) * max(widths + sizes, default=0)


def _of_times(given: Sequence[Any]) -> int:
    left, right = given
    if isinstance(left, int) and isinstance(right, int):
        return 0 if left.bit_length() + right.bit_length() <= _MOST_BITS else MOST_CHARACTERS + 1
    return _of_product(given) if any(isinstance(each, str | list | tuple) for each in given) else 0


def _of_power(given: Sequence[Any]) -> int:
    left, right = given
    is_small = not isinstance(left, int) or not isinstance(right, int) or left.bit_length() * right <= _MOST_BITS
    return 0 if is_small else MOST_CHARACTERS + 1


_GROWTH: dict[str, Callable[[Sequence[Any]], int]] = {
    **dict.fromkeys(_WIDENING, _of_product),
    "tojson": lambda given: _of_product([each for each in given if not isinstance(each, tuple)]),
    **dict.fromkeys(("list", "sort"), lambda _given: 0),  # their lists are counted as they are there
    "join": _of_join,
    "sum": _of_sum,
    "replace": _of_replace,
    **dict.fromkeys(("format", "format_map"), _of_format),
    "%": lambda given: _of_format(given) if isinstance(given[0], str) else 0,
    "*": _of_times,
    "**": _of_power,
}

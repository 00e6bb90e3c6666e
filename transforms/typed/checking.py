"""Checks that answers can be held to a record, before there is a model: an error that its grammar would raise with
the first document is raised here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.model_manager.grammars.compiling import allowed, check
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest

from .answer_values import Range
from .leaves import bounded, expression, is_choice
from .record_grammar import RecordGrammar
from .shapes import Items, Leaf, Maybe, Record, Shape

_DOCUMENT = "a"
"""One that has spans, however they are cut."""
_PREFIX = "failed to compile JSON schema: "


def check_supported(record: Record) -> None:
    """Raises ConfigError for what no grammar is made of, what nothing satisfies, and what is more than a grammar may
    have; it names the field where one is to blame.
    """
    whole = _refusal(grammar=RecordGrammar(record).of(_DOCUMENT))
    if whole is None:
        return
    for path, leaf in _leaves(record, ""):
        if not is_choice(leaf) and expression(leaf) is None:
            said = _refusal(json_schema=bounded(leaf))
            if said is not None:
                raise ConfigError(f"{path}: {said}")
    raise ConfigError(f"the grammar of {record.name}: {whole}")


def check_answer(record: Record, document: str, answer: str, ranges: Mapping[str, Range]) -> None:
    """Raises ConfigError for an example's answer that the model could not write, and names the value. `ranges` has the
    place of each of the answer's values, by path.
    """
    written = answer.encode()
    taken = allowed(Constraint(grammar=RecordGrammar(record).of(document)), answer)
    if taken < len(written):
        at = len(written[:taken].decode(errors="ignore"))
        around = [(end - start, path) for path, (start, end) in ranges.items() if start <= at <= end]
        path = min(around)[1]
        value = answer[slice(*ranges[path])]
        raise ConfigError(f"{path or record.name}: {value[:200]} is no value of its type")


def _refusal(**constraint: Any) -> str | None:
    """Why the engine would not take it."""
    try:
        check(Constraint(**constraint))
    except InvalidRequest as error:
        return str(error).partition(": ")[2].rpartition(_PREFIX)[2]
    return None


def _leaves(shape: Shape, path: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(shape, Leaf):
        yield path, shape
    elif isinstance(shape, Maybe):
        yield from _leaves(shape.shape, path)
    elif isinstance(shape, Items):
        yield from _leaves(shape.item, f"{path}[]")
    elif isinstance(shape, Record):
        for member in shape.members:
            yield from _leaves(member.shape, f"{path}.{member.key}" if path else member.key)

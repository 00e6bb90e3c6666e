"""A written row, and the prompt it answers, as a page shows them: clipped texts, fields with their spans, marks.

completion   prompt │ text           score, embed   prompt │ what was found, in a line
extract      document with its spans marked by field │ fields, their values and how sure the model was
classify     document │ each label and its probability
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace.transforms.writing.typed_rows import own_columns

from .facts import UNREADABLE, Facts, facts_of, finite, probability, share
from .texts import MOST_OF_DOCUMENT, NOTHING, Clipped, as_text, clipped, harmless

COLOURS = 8
"""Colours of fields; the ninth field has the first one's colour."""
_MOST_FIELDS = 200
_MOST_DEPTH = 20
_SURE, _LIKELY = 0.95, 0.8
_QUOTED = re.compile(r"[].[]|^$")
"""What keys have that stand in brackets and quotation marks in paths (transforms/typed/key_paths.py)."""
_PROMPT = 4000
"""Characters of a prompt without spans."""
_VALUE = 300
"""Characters of a field's value."""


class DocumentPiece(NamedTuple):
    """A piece of a document: plain, or the span of a field."""

    text: str
    field: int | None = None
    """Its colour."""
    path: str = ""
    level: str = ""


class AnswerField(NamedTuple):
    """A value of an answer."""

    path: str
    value: Clipped
    probability: float | None
    """How sure the model was of it, 0 to 1."""
    level: str
    """`sure`, `likely`, `unsure`, or nothing where that is not known."""
    colour: int | None
    """None: it is no piece of the document."""


@dataclass(frozen=True)
class ShownRow:
    """All that a page shows of a row."""

    id: Clipped
    facts: Facts
    prompt: Sequence[DocumentPiece]
    """Empty where it is not known."""
    prompt_dropped: int
    answer: Clipped
    fields: Sequence[AnswerField] = ()
    why: Clipped = NOTHING
    """Why it failed."""


def shown_row(row: Mapping[str, Any], prompt: Clipped | None = None) -> ShownRow:
    """`prompt`: what the row answers, as it was read; by default what the row says of it, which a dead letter does."""
    facts = facts_of(row)
    extracted = isinstance(row.get("confidences"), Mapping)
    spans = _spans(row.get("spans")) if extracted else {}
    fields = _extracted(row, spans) if extracted else _labels(row)
    given = prompt or Clipped(_own_prompt(row, facts))
    document = clipped(given.text, MOST_OF_DOCUMENT if spans else _PROMPT)
    colours = {each.path: each for each in fields if each.colour is not None}
    return ShownRow(
        clipped(row.get("id", row.get("custom_id")), 200),
        facts,
        list(_pieces(document.text, spans, colours)) if document.text else [],
        document.dropped + given.dropped,
        clipped("" if fields else _answer(row)),
        fields,
        _why(row, facts),
    )


def _own_prompt(row: Mapping[str, Any], facts: Facts) -> str:
    """A dead letter's row as it was."""
    return as_text(row.get("row")) if facts.failed else ""


def _why(row: Mapping[str, Any], facts: Facts) -> Clipped:
    if not facts.failed:
        return NOTHING
    error = row.get("error")
    said = error.get("message") if isinstance(error, Mapping) else row.get("reason", row.get(UNREADABLE))
    return clipped(said)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _answer(row: Mapping[str, Any]) -> str:
    if isinstance(row.get("choices"), list) and row["choices"]:
        return "\n".join(f"{number}. {_text_of(each)}" for number, each in enumerate(row["choices"][:20], 1))
    if isinstance(row.get("scores"), list):
        return "\n".join(map(_score, row["scores"][:50]))
    if isinstance(row.get("embedding"), list):
        vector = row["embedding"]
        return f"{len(vector):,} numbers, the first {', '.join(map(_three_digits, vector[:3]))}"
    if isinstance(row.get("response"), Mapping):
        body = row["response"].get("body")
        choices = body.get("choices") if isinstance(body, Mapping) else None
        return _text_of(choices[0]) if isinstance(choices, list) and choices else ""
    return as_text(row.get("text", row.get("answer")))


def _text_of(choice: Any) -> str:
    """The text of a choice, ours or OpenAI's."""
    if not isinstance(choice, Mapping):
        return as_text(choice)
    message = choice.get("message")
    return as_text(message.get("content") if isinstance(message, Mapping) else choice.get("text"))


def _score(score: Any) -> str:
    if not isinstance(score, Mapping):
        return as_text(score)
    return f"{as_text(score.get('continuation'))} ({_three_digits(score.get('logprob'))})"


def _three_digits(value: Any) -> str:
    found = finite(value)
    return as_text(value) if found is None else f"{found:.3f}"


# ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _extracted(row: Mapping[str, Any], spans: Mapping[str, tuple[int, int]]) -> list[AnswerField]:
    numbers = {path: number for number, path in enumerate(spans)}
    found = []
    for path, value in _leaves("", own_columns(dict(row)), 0):
        sure = probability(row["confidences"].get(path))
        colour = numbers[path] % COLOURS if path in numbers else None
        found.append(AnswerField(clipped(path, _VALUE).text, clipped(value, _VALUE), sure, level(sure), colour))
        if len(found) == _MOST_FIELDS:
            break
    return found


def _labels(row: Mapping[str, Any]) -> list[AnswerField]:
    """The labels of a classified document, its own before the others."""
    probabilities = row.get("probabilities")
    if not isinstance(probabilities, Mapping):
        return []
    labels = row.get("labels")
    own = [each for each in labels if isinstance(each, str)] if isinstance(labels, list) else []
    names = [*own, *(name for name in probabilities if name not in own)][:_MOST_FIELDS]
    found = []
    for name in names:
        sure = share(probabilities.get(name))
        is_own = name in own
        mark = Clipped("✓" if is_own else "–")
        found.append(AnswerField(clipped(name, _VALUE).text, mark, sure, level(sure) if is_own else "", None))
    return found


def level(sure: float | None) -> str:
    """A probability's level, of three."""
    if sure is None:
        return ""
    return "sure" if sure >= _SURE else "likely" if sure >= _LIKELY else "unsure"


def _leaves(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The values of an answer, each with the path by which rows name it."""
    if isinstance(value, Mapping) and value and depth < _MOST_DEPTH:
        for key, inner in value.items():
            yield from _leaves(_joined(path, str(key)), inner, depth + 1)
    elif isinstance(value, list) and value and depth < _MOST_DEPTH:
        for number, inner in enumerate(value):
            yield from _leaves(f"{path}[{number}]", inner, depth + 1)
    else:
        yield path, value


def _joined(path: str, key: str) -> str:
    if _QUOTED.search(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _spans(given: Any) -> dict[str, tuple[int, int]]:
    """Characters from and up to, by the field's path; what is no span is left out."""
    if not isinstance(given, Mapping):
        return {}
    found = {}
    for path, where in given.items():
        start, end = (where.get("start"), where.get("end")) if isinstance(where, Mapping) else (None, None)
        if isinstance(start, int) and isinstance(end, int) and 0 <= start < end:
            found[str(path)] = (start, end)
    return found


def _pieces(
    text: str, spans: Mapping[str, tuple[int, int]], fields: Mapping[str, AnswerField]
) -> Iterator[DocumentPiece]:
    """The whole text, in order. Of spans that overlap the one that begins first is marked."""
    at = 0
    for path, (start, end) in sorted(spans.items(), key=lambda each: each[1]):
        if start < at or start >= len(text):
            continue
        if start > at:
            yield DocumentPiece(text[at:start])
        of = fields.get(path)
        at = min(end, len(text))
        yield DocumentPiece(
            text[start:at], of.colour if of else 0, of.path if of else harmless(path), of.level if of else ""
        )
    if at < len(text):
        yield DocumentPiece(text[at:])

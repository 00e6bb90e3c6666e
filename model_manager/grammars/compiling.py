"""Constraints of requests → grammars that say, token by token, what may come next. Each is compiled once, then kept.

llguidance compiles and matches. Its time, memory and states are limited before and while it works, so every constraint
ends in a grammar or in InvalidRequest. Knows no sequence and no batch.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..wire.constraint import Constraint
from ..wire.decoding import msgpack_decoder
from ..wire.errors import InvalidRequest, ModelUnsupported
from . import refusals
from .closing import Closing
from .compilations import LONGEST, Compilations
from .endings import Endings
from .grammar import Grammar
from .grammar_cache import MOST_KEPT_BYTES, GrammarCache, estimated_bytes, refusal_bytes
from .grammar_counts import GrammarCounts
from .lark import ascii_classes, prepared_lark
from .llguidance_schemas import OPTIONS, prepared
from .must_come import longest_of, too_long
from .regex_reasons import misread
from .token_bytes import load_tokenizer

_LITERALS = re.compile(r"(?<![\\\[^])[^\\.()\[\]{}*+?|^$]{2,64}|[^\x00-\x7f]")
"""Runs of a regular expression that stand for themselves, and characters that few texts end with."""
_STRINGS = re.compile(r'"([^"\\\n]{2,64}|[^\x00-\x7f])"')
"""String literals of a Lark grammar."""
_MOST_LITERALS = 16
_MOST_KEPT = 2**15
"""Characters of the longest source whose matcher is kept for the next output."""
_CHOICES = 4
"""Choices after which no further forced text is looked for."""


def check(constraint: Constraint, longest: float = LONGEST) -> None:
    """Raises InvalidRequest as `compile` would, and for one that takes more than `longest` seconds of processor time.
    Needs no model: tokens are single bytes here, and tokens that a grammar names are not checked.
    """
    if reason := _fault(constraint.key(), longest):
        raise InvalidRequest(f"constraint.{constraint.kind}: {reason}")


def check_quick(constraint: Constraint, longest: float, most: int) -> None:
    """Raises InvalidRequest as `check` does, and for a constraint by which more than `most` characters must come one
    after another: they are looked at all together, in one step of an engine, and other requests wait.
    """
    if longest_of(constraint) <= most:
        check(constraint, longest)
        if _forced_at_first(constraint) <= most:
            return
    raise InvalidRequest(
        f"constraint.{constraint.kind}: takes at most {most} characters that must come one after another"
    )


def _forced_at_first(constraint: Constraint) -> int:
    """How many bytes must come, at most, before an output has a choice, or after one of its first choices."""
    matcher, most = _matcher(_bytes(), _source(constraint)), 0
    for _ in range(_CHOICES):
        forced = matcher.compute_ff_tokens()
        most = max(most, len(forced))
        matcher.consume_tokens(forced)
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").argmax()
        if matcher.is_stopped() or not matcher.consume_token(int(allowed)):
            break
    if matcher.is_error():
        raise InvalidRequest(f"constraint.{constraint.kind}: {refusals.TOO_MANY_STATES}")
    return most


@functools.lru_cache(maxsize=256)
def _fault(key: bytes, longest: float) -> str:
    """What is wrong with the constraint of that key, or nothing: rows by the thousand have the same one.

    Raises InvalidRequest, which is not kept, for one that takes too long to compile.
    """
    constraint = msgpack_decoder(Constraint).decode(key)
    source = _source(constraint)
    reason = Compilations(longest).result(key, lambda: _failure(_matcher(_bytes(), source), constraint) or "")
    return reason if isinstance(reason, str) and not refusals.OF_A_MODEL.search(reason) else ""


def allowed(constraint: Constraint, text: str) -> int:
    """How many bytes of a text an output may begin with; one fewer if all may, but the output could not end there.

    Raises InvalidRequest as `check` does, and needs no model.
    """
    check(constraint)
    output = text.encode()
    taken, may_end = _read(_source_of(constraint.key()), output)
    return taken if taken < len(output) or may_end else taken - 1


def as_lark(constraint: Constraint) -> str:
    """The constraint as a Lark grammar, for an engine with an older llguidance of its own: characters of JSON may be
    escaped in several ways there. `check` says what is wrong with a constraint.
    """
    options = {name: value for name, value in OPTIONS.items() if name != "json_allowed_escapes"}
    if constraint.grammar is not None:
        return prepared_lark(constraint.grammar, options)
    if constraint.regex is not None:
        return f"start: /(?:{ascii_classes(constraint.regex)})/"
    if constraint.choice is not None:
        return f"start: /(?:{'|'.join(map(_literal, constraint.choice))})/"
    schema = constraint.json_schema if isinstance(constraint.json_schema, dict) else {}
    return f"start: %json {json.dumps(prepared(schema) | {'x-guidance': options})}"


def is_whole(lark: str, text: str) -> bool:
    """True if the text is an output of the grammar from beginning to end. Needs no model."""
    return _takes(LLMatcher.grammar_from_lark(lark), text.encode())


def is_output(constraint: Constraint, output: bytes) -> bool:
    """True if these bytes are a whole output under the constraint, which `check` takes. Needs no model."""
    return _takes(_source_of(constraint.key()), output)


def _takes(source: str, output: bytes) -> bool:
    taken, may_end = _read(source, output)
    return taken == len(output) and may_end


def _read(source: str, output: bytes) -> tuple[int, bool]:
    """How many bytes of the output the grammar takes, and whether an output may end behind them."""
    found = _consumed(_start(source).deep_copy(), output) if len(source) <= _MOST_KEPT else None
    if found == (len(output), True):
        return found
    # Copies share one lexer. When earlier outputs have filled it, it takes nothing more, and says nothing of that.
    alone = _consumed(_matcher(_bytes(), source), output)
    if found is not None and found != alone:
        _start.cache_clear()
    return alone


def _consumed(matcher: LLMatcher, output: bytes) -> tuple[int, bool]:
    return matcher.try_consume_tokens(_bytes().tokenize_bytes(output)), matcher.is_accepting()


class GrammarCompiler:
    """Compiles grammars over one model's tokens; any thread may call it. The interpreter's lock is free meanwhile."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        most_kept_bytes: int = MOST_KEPT_BYTES,
        longest: float = LONGEST,
    ) -> None:
        """`folder` holds tokenizer.json, which the first constraint loads; `vocab_size` is the width of the logits.

        `most_kept_bytes` is the memory for grammars that no request uses now. `longest` is the processor time in
        seconds that a compilation may take.
        """
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._loaded: tuple[LLTokenizer, Closing] | InvalidRequest | None = None
        self._cache = GrammarCache(most_kept_bytes)
        self._compilations = Compilations(longest)
        self._loading = threading.Lock()
        self.counts = GrammarCounts()

    def compile(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint; raises InvalidRequest, which names what is unsupported or impossible."""
        key = constraint.key()
        found = self._cache.get(key)
        if found is None:
            found = self._compiled(constraint, key)
        else:
            self.counts.hit()
        if isinstance(found, str):
            raise InvalidRequest(found)
        return found

    def kept(self, constraint: Constraint) -> Grammar | None:
        """The grammar, if it is in the cache."""
        found = self._cache.get(constraint.key())
        if not isinstance(found, Grammar):
            return None
        self.counts.hit()
        return found

    @property
    def tokenizer(self) -> LLTokenizer:
        """The model's tokenizer; raises InvalidRequest if constraints do not support its kind."""
        return self._vocabulary()[0]

    def _vocabulary(self) -> tuple[LLTokenizer, Closing]:
        with self._loading:
            if self._loaded is None:
                try:
                    tokenizer = load_tokenizer(self._folder, self._vocab_size, self._eos_token_ids)
                    self._loaded = tokenizer, Closing(tokenizer)
                except ModelUnsupported as error:
                    self._loaded = InvalidRequest(f"constraint: not with this model: {error}")
            if isinstance(self._loaded, InvalidRequest):
                raise InvalidRequest(str(self._loaded))
            return self._loaded

    def _compiled(self, constraint: Constraint, key: bytes) -> Grammar | str:
        """The grammar, or what is wrong with the constraint. Both are cached; a timeout is not."""
        vocabulary = self._vocabulary()
        try:
            return self._compilations.result(
                key, lambda: self._keep(constraint, key, self._built(constraint, vocabulary))
            )
        except InvalidRequest as error:
            raise InvalidRequest(f"constraint.{constraint.kind}: {error}") from None

    def _built(self, constraint: Constraint, vocabulary: tuple[LLTokenizer, Closing]) -> Grammar | str:
        began = time.monotonic()
        try:
            return _built(*vocabulary, constraint)
        finally:
            self.counts.compiled(time.monotonic() - began)

    def _keep(self, constraint: Constraint, key: bytes, found: Grammar | str) -> Grammar | str:
        self._cache.put(
            key, found, refusal_bytes(found) if isinstance(found, str) else estimated_bytes(constraint, key)
        )
        return found


def _source(constraint: Constraint) -> str:
    """The constraint in llguidance's own form; raises InvalidRequest for what that would misread or choke on."""
    if (said := too_long(constraint)) is not None:
        raise InvalidRequest(f"constraint.{constraint.kind}: {said}")
    if constraint.regex is not None:
        said = misread(constraint.regex)
        if said is not None:
            raise InvalidRequest(f"constraint.regex: {said}")
        return LLMatcher.grammar_from_regex(ascii_classes(constraint.regex))
    if constraint.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(_literal, constraint.choice)))
    if constraint.grammar is not None:
        return LLMatcher.grammar_from_lark(prepared_lark(constraint.grammar))
    schema = {} if constraint.json else constraint.json_schema
    if schema is False:
        raise InvalidRequest("constraint.json_schema: takes a schema that something satisfies, got false")
    return _schema_source(prepared(schema) if isinstance(schema, dict) else {})


def _schema_source(schema: dict[str, Any]) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema | {"x-guidance": OPTIONS}))


def _literal(text: str) -> str:
    """A regular expression that matches this text only."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _built(tokenizer: LLTokenizer, closing: Closing, constraint: Constraint) -> Grammar | str:
    """The grammar of a constraint, or what is wrong with it."""
    try:
        source = _source(constraint)
    except InvalidRequest as error:
        return str(error)

    def build() -> LLMatcher:
        return _matcher(tokenizer, source)

    start = build()
    reason = _failure(start, constraint)
    name = f"constraint.{constraint.kind}"
    if reason is not None:
        return f"{name}: {reason}"
    literals = _LITERALS.findall(constraint.regex or "") + _STRINGS.findall(constraint.grammar or "")
    return Grammar(name, start, build, tokenizer, closing.towards(_endings(constraint), literals[:_MOST_LITERALS]))


def _endings(constraint: Constraint) -> Endings:
    if constraint.json_schema is not None:
        return Endings.under(constraint.json_schema)
    return Endings(is_json=constraint.json)


def _matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    return LLMatcher(tokenizer, source, log_level=0, limits=_limits(len(source)))


def _limits(size: int) -> LLParserLimits:
    """Limits of compiling and of each step; `size` is the length of the source, which spans of a document make long.

    A thousand units of fuel take 20 to 70 µs, ten thousand items of a very ambiguous grammar 0.1 s. Public schemas take
    under 300 items in a step, an object of 1,900 optional properties about 8,000.
    """
    items = min(50_000, max(10_000, size // 2))
    return LLParserLimits(
        initial_lexer_fuel=min(20_000_000, max(1_000_000, 100 * size)),
        step_lexer_fuel=min(5_000_000, max(200_000, 50 * size)),
        step_max_items=items,
        max_items_in_row=items,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def _failure(matcher: LLMatcher, constraint: Constraint) -> str | None:
    """Why nothing can be generated: the source did not compile, or its language is empty. Computes the first mask."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error() and not _can_begin(matcher):
        return refusals.TOO_MANY_STATES
    return refusals.reason(constraint, matcher.get_error(), _message) if matcher.is_error() else None


def _can_begin(matcher: LLMatcher) -> bool:
    """False if what must come first has too many states: every output would fail, each after seconds."""
    forced = matcher.compute_ff_tokens()
    return not forced or matcher.deep_copy().consume_token(forced[0])


@functools.lru_cache(maxsize=32)
def _start(source: str) -> LLMatcher:
    """A matcher of bytes at the start of outputs, to be copied: rows by the thousand have the same constraint."""
    return _matcher(_bytes(), source)


@functools.lru_cache(maxsize=32)
def _source_of(key: bytes) -> str:
    """The constraint of that key in llguidance's own form."""
    return _source(msgpack_decoder(Constraint).decode(key))


@functools.cache
def _bytes() -> LLTokenizer:
    """A tokenizer of single bytes; kept, since outputs and parts of schemas are looked at many times."""
    return LLTokenizer("byte")


def _message(schema: dict[str, Any]) -> str | None:
    """What llguidance says of a schema that it refuses; None if it takes the schema."""
    matcher = _matcher(_bytes(), _schema_source(schema))
    return matcher.get_error() if matcher.is_error() else None

"""A client that answers under its requests' constraints as a model without sense would: at random, and to the end."""

from __future__ import annotations

import random
from concurrent.futures import Future
from functools import cache
from typing import Any

from millrace.model_manager.grammars.compiling import GrammarCompiler
from millrace.model_manager.grammars.grammar import Grammar
from millrace.model_manager.store.resolving import resolve_tokenizer
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import Content
from millrace.transforms.models.stand_in import StandInClient, stand_in_output

LOGPROB_FREE, LOGPROB_FORCED = -2.0, -0.25
"""What every token says of itself, whether the model had a choice or not."""
EMBEDDED = resolve_tokenizer(EMBEDDED_MODEL)
_VOCABULARY, _END = 1536, 1
_PATIENCE = 60
"""Tokens after which it makes for the end."""


@cache
def compiler() -> GrammarCompiler:
    """Compiles for the embedded model's tokens."""
    return GrammarCompiler(EMBEDDED, _VOCABULARY, [_END])


def answer(grammar: Grammar, seed: int) -> tuple[list[int], list[int]]:
    """Tokens of a sentence of the grammar, and which of them were forced."""
    chance, matcher = random.Random(seed), grammar.matcher()
    tokens: list[int] = []
    forced: list[int] = []
    while True:
        allowed = _allowed(matcher.compute_bitmask())
        if _END in allowed and (len(allowed) == 1 or chance.random() < 0.5 or len(tokens) > _PATIENCE):
            return tokens, forced
        if len(tokens) > _PATIENCE:
            token = min(allowed, key=lambda each: _openness(grammar.tokenizer.decode_bytes([each])))
        else:
            token = chance.choice(allowed)
        if len(allowed) == 1:
            forced.append(len(tokens))
        tokens.append(token)
        matcher.consume_token(token)
        assert not matcher.is_error(), matcher.get_error()
        assert len(tokens) < 5000


def _allowed(mask: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]


def _openness(token: bytes) -> tuple[int, bool, bytes]:
    """The less, the sooner the answer ends. A number below 0 does not end while all its digits are 0."""
    return 0 if token == b'"' else 1 if token[:1] in (b"]", b"}") else 2, not token.strip(b"0"), token


class ConstrainedClient(StandInClient):
    """Its answers are sentences of the constraint; which ones, the prompt and the seed say."""

    def submit(self, prompt: Content, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:  # noqa: ARG002
        self._checked(prompt)
        found = constrained(str(prompt), params)  # here, where an assertion of ours is seen
        return self._start(lambda: found)


def constrained(prompt: str, params: SamplingParams) -> Output:
    """What the client gives."""
    assert isinstance(params.constraint, Constraint)
    grammar = compiler().compile(params.constraint)
    tokens, forced = answer(grammar, random.Random(f"{prompt}|{params.seed}").randrange(2**31))
    text = grammar.tokenizer.decode_bytes(tokens)
    said = [
        TokenLogprob(
            grammar.tokenizer.decode_bytes([token]).decode("utf-8", "replace"),
            token,
            LOGPROB_FORCED if at in forced else LOGPROB_FREE,
            [],
        )
        for at, token in enumerate(tokens)
    ]
    logprobs = None if params.logprobs is None else Logprobs([], [], tokens=said)
    return stand_in_output(len(prompt.split()), tokens, text=text.decode(), logprobs=logprobs, forced=forced)

"""How one request is to be sampled, and its place among others. Every field belongs to a single request."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from .constraint import Constraint
from .conversion import converted, nearest
from .errors import InvalidRequest

MOST_LOGPROBS = 20
"""Alternatives to a token whose log-probabilities can be asked for."""
_MAX_STOPS = 16
_MAX_STRING_LENGTH = 256
_MAX_SALT = 256
_SURROGATE = re.compile("[\ud800-\udfff]")
PARAMETERS_ELSEWHERE = {
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "random_seed": "seed",
    "stop_sequences": "stop",
    "temp": "temperature",
}
"""Parameters by the names that other libraries have for them."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one request, in the field's usual names; greedy unless `temperature` is above 0.

    Raises InvalidRequest, naming the parameter, for a value outside its range.
    """

    max_tokens: int = 128
    """Most tokens to generate, ≥ 1; fewer where the model's positions end."""
    min_tokens: int = 0
    """Neither end-of-sequence and stop tokens nor stop strings end the output before it has so many tokens."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it before anything is cut; at most 100."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 is all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together reach this probability, 0 < top_p ≤ 1 (after top_k)."""
    min_p: float = 0.0
    """Sample among tokens at least this fraction as likely as the likeliest, 0 ≤ min_p ≤ 1."""
    typical_p: float = 1.0
    """Sample among the most typical tokens that together reach this probability, 0 < typical_p ≤ 1 (after the rest)."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of the prompt and the output less likely, below 1 more; 0 < repetition_penalty ≤ 100."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that the output has, -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken from the logits of tokens that the output has, once for each time, -2 to 2."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens: token id to -100 … 100."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Generate these tokens only."""
    bad_words: tuple[str, ...] = ()
    """Never generate these strings, as the model's tokenizer writes them with and without a space before them."""
    constraint: Constraint | None = None
    """What the output must be: a regular expression, a JSON Schema, any JSON, a grammar or a list of strings."""
    n: int = 1
    """Answers to the prompt, 1 to 64, that share its keys and values; greedy ones are all equal."""
    seed: int | None = None
    """The same seed gives the same random numbers, in float32 the same tokens in any company; by default that of the
    row's own id, else of the job's."""
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these strings that appears in the output; the text excludes it."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with the first of these tokens; the text excludes it."""
    include_stop_str_in_output: bool = False
    """The text includes the stop string, or the stop token's own text, that ended it."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens (for benchmarks)."""
    priority: int = 0
    """Requests of a lower number run first, and lose their memory to others last; in order of arrival among equals."""
    deadline: float | None = None
    """Seconds from the manager's receipt after which the request ends with what it has; without a token, it fails."""
    cache_salt: str = ""
    """Prompts of different salts never share cached keys and values: it keeps tenants apart."""
    adapter: str = ""
    """A LoRA adapter on top of the model: a folder, a hub name or `gs://bucket/folder`; empty is the model alone."""
    logprobs: int | None = None
    """Give the log-probability of each generated token, and of so many of the likeliest in its place, 0 to 20."""
    prompt_logprobs: int | None = None
    """Give the log-probability of each prompt token, and of so many of the likeliest tokens in its place, 0 to 20."""

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_distribution()
        self._check_tokens()
        self._check_stops()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _check(name, count, count is None or 0 <= count <= MOST_LOGPROBS, f"0 to {MOST_LOGPROBS}")
        _check("n", self.n, 1 <= self.n <= 64, "1 to 64")
        _check("priority", self.priority, -(2**31) <= self.priority < 2**31, "-2**31 to 2**31 - 1")
        deadline = self.deadline
        _check("deadline", deadline, deadline is None or 0 < deadline < math.inf, "a finite number of seconds above 0")
        _check("cache_salt", self.cache_salt, len(self.cache_salt) <= _MAX_SALT, f"at most {_MAX_SALT} characters")
        _check("cache_salt", self.cache_salt, not _SURROGATE.search(self.cache_salt), "text that can be UTF-8")
        _check("adapter", self.adapter, not _SURROGATE.search(self.adapter), "text that can be UTF-8")

    def _check_lengths(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens, "0 to max_tokens")

    def _check_distribution(self) -> None:
        _check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "0 (greedy) to 100")
        _check("top_k", self.top_k, self.top_k >= 0, "0 (off) or more")
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "more than 0, at most 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "0 (off) to 1")
        _check("typical_p", self.typical_p, 0.0 < self.typical_p <= 1.0, "more than 0, at most 1")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, 0.0 < penalty <= 100.0, "more than 0, at most 100")
        _check("presence_penalty", self.presence_penalty, -2.0 <= self.presence_penalty <= 2.0, "-2 to 2")
        _check("frequency_penalty", self.frequency_penalty, -2.0 <= self.frequency_penalty <= 2.0, "-2 to 2")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**63, "0 to 2**63 - 1")

    def _check_tokens(self) -> None:
        for token, bias in self.logit_bias.items():
            held = token >= 0 and -100.0 <= bias <= 100.0
            _check("logit_bias", {token: bias}, held, "token ids of 0 or more, each with -100 to 100")
        allowed = self.allowed_token_ids
        _check("allowed_token_ids", allowed, allowed is None or len(allowed) > 0, "at least one token id")
        for name in ("allowed_token_ids", "stop_token_ids"):
            for token in getattr(self, name) or ():
                _check(name, token, token >= 0, "token ids of 0 or more")

    def _check_stops(self) -> None:
        _check("stop", len(self.stop), len(self.stop) <= _MAX_STOPS, f"at most {_MAX_STOPS} strings")
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                held = 0 < len(text) <= _MAX_STRING_LENGTH
                _check(name, text, held, f"strings of 1 to {_MAX_STRING_LENGTH} characters")
                _check(name, text, not _SURROGATE.search(text), "text that can be written as UTF-8")
        for text in self.bad_words:
            _check("bad_words", text, bool(text.strip()), "strings with more than spaces")

    def unsampled(self) -> Self:
        """Those of them that are not of sampling, for what generates nothing."""
        return type(self)(
            priority=self.priority, deadline=self.deadline, cache_salt=self.cache_salt, adapter=self.adapter
        )

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From a row of JSON, where a lone string for `stop` or `bad_words` is one and the keys of `logit_bias` are
        strings; an unknown name or type raises InvalidRequest.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        for name in ("stop", "bad_words"):
            if isinstance(fields.get(name), str):
                fields[name] = [fields[name]]
        if isinstance(fields.get("constraint"), Mapping | str):
            fields["constraint"] = Constraint.parse(fields["constraint"])
        return converted(fields, cls, InvalidRequest, what="sampling parameter", near=nearest_parameter)

    def updated(self, fields: Mapping[str, Any]) -> Self:
        """These parameters with a row's own on top; raises InvalidRequest as `parse` does."""
        return self.parse(msgspec.to_builtins(self) | dict(fields)) if fields else self


def nearest_parameter(name: str) -> str | None:
    """The parameter that was probably meant by a name that is none: misspelt, or another library's."""
    return PARAMETERS_ELSEWHERE.get(name) or nearest(name, SamplingParams.__struct_fields__)


def _check(name: str, got: object, holds: bool, takes: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name}={got!r}: takes {takes}")

"""How one request is to be sampled, and its place among others. Every field belongs to a single request."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from model_manager.wire.errors import InvalidRequest

MOST_LOGPROBS = 20
"""Alternatives to a token whose log-probabilities can be asked for."""
_MAX_STOPS = 16
_MAX_STOP_LENGTH = 256
_MAX_SALT = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one request, in the field's usual names; greedy unless `temperature` is above 0.

    Raises InvalidRequest, naming the parameter, for a value outside its range.
    """

    max_tokens: int = 128
    """Most tokens to generate, ≥ 1; fewer where the model's positions end."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it before top_k and top_p; at most 100."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 is all."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together reach this probability, 0 < top_p ≤ 1 (after top_k)."""
    seed: int | None = None
    """The same seed gives the same tokens in any company; without one it is derived from the request's id."""
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these strings that appears in the output; the text excludes it."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with the first of these tokens; the text excludes it."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence tokens (for benchmarks)."""
    priority: int = 0
    """Requests of a lower number run first, and lose their memory to others last; in order of arrival among equals."""
    deadline: float | None = None
    """Seconds from the manager's receipt after which the request ends with what it has; without a token, it fails."""
    cache_salt: str = ""
    """Prompts of different salts never share cached keys and values: it keeps tenants apart."""
    prompt_logprobs: int | None = None
    """Give the log-probability of each prompt token, and of so many of the likeliest tokens in its place, 0 to 20."""

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, 0.0 <= self.temperature <= 100.0, "0 (greedy) to 100")
        _check("top_k", self.top_k, self.top_k >= 0, "0 (off) or more")
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "more than 0, at most 1")
        _check("seed", self.seed, self.seed is None or 0 <= self.seed < 2**63, "0 to 2**63 - 1")
        asked = self.prompt_logprobs
        _check("prompt_logprobs", asked, asked is None or 0 <= asked <= MOST_LOGPROBS, f"0 to {MOST_LOGPROBS}")
        _check("stop", len(self.stop), len(self.stop) <= _MAX_STOPS, f"at most {_MAX_STOPS} strings")
        for stop in self.stop:
            _check("stop", stop, 0 < len(stop) <= _MAX_STOP_LENGTH, f"strings of 1 to {_MAX_STOP_LENGTH} characters")
            _check("stop", stop, not _SURROGATE.search(stop), "text that can be written as UTF-8")
        for token in self.stop_token_ids:
            _check("stop_token_ids", token, token >= 0, "token ids of 0 or more")
        _check("priority", self.priority, -(2**31) <= self.priority < 2**31, "-2**31 to 2**31 - 1")
        deadline = self.deadline
        _check("deadline", deadline, deadline is None or 0 < deadline < math.inf, "a finite number of seconds above 0")
        _check("cache_salt", self.cache_salt, len(self.cache_salt) <= _MAX_SALT, f"at most {_MAX_SALT} characters")
        _check("cache_salt", self.cache_salt, not _SURROGATE.search(self.cache_salt), "text that can be UTF-8")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """From a row of JSON, where a lone string for `stop` is one; an unknown name or type raises InvalidRequest."""
        fields = {name: value for name, value in fields.items() if value is not None}
        if isinstance(fields.get("stop"), str):
            fields["stop"] = [fields["stop"]]
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, InvalidRequest):
                raise error.__cause__ from None
            raise InvalidRequest(f"sampling parameters: {error}") from None

    def updated(self, fields: Mapping[str, Any]) -> Self:
        """These parameters with a row's own on top; raises InvalidRequest as `parse` does."""
        return self.parse(msgspec.to_builtins(self) | dict(fields)) if fields else self


def _check(name: str, got: object, holds: bool, takes: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name}={got!r}: takes {takes}")

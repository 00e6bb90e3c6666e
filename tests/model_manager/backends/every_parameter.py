"""Every parameter of a request, with a value that is not its default: what an engine lacks it refuses by name."""

from __future__ import annotations

from typing import Any

CHANGED: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 3,
    "temperature": 1.4,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.25,
    "typical_p": 0.75,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {3: 1.0},
    "allowed_token_ids": [4, 5],
    "bad_words": ["no"],
    "constraint": {"regex": "a+"},
    "n": 2,
    "seed": 11,
    "stop": ["x"],
    "stop_token_ids": [6],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "priority": 1,
    "deadline": 5.0,
    "cache_salt": "tenant",
    "adapter": "tone",
    "logprobs": 2,
    "prompt_logprobs": 1,
}

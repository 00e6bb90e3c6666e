"""llguidance's calls that keep the interpreter's lock, made without it.

Advancing a matcher may take a second, and takes the lock, so all threads would wait. Only a call for several matchers
frees the lock. So one that has failed, which is left at once, goes with each. Knows matchers only.
"""

from __future__ import annotations

import functools

from llguidance import LLExecutor, LLMatcher, LLTokenizer


def consume(matcher: LLMatcher, token_id: int) -> bool:
    """As `matcher.consume_token`."""
    executor, failed = _several()
    return bool(executor.consume_token_par([(matcher, token_id), (failed.deep_copy(), 0)])[0])


def start() -> None:
    """Start the thread that this uses, as a child of the calling one."""
    _several()


@functools.cache
def _several() -> tuple[LLExecutor, LLMatcher]:
    failed = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(""), log_level=0)
    assert failed.is_error()
    return LLExecutor(1), failed

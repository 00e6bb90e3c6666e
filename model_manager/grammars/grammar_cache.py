"""What constraints came to, kept for the next request with the same one within a bound on memory.

Knows estimates of sizes; not what compiles, nor what a grammar is used for.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from ..wire.constraint import Constraint
from .grammar import Grammar

MOST_KEPT_BYTES = 2**28
_LEAST_BYTES = 2**18
"""What the smallest grammar takes."""
_REFUSAL_BYTES = 400
"""Of a digest and what keeps it, beside the sentence."""
_LARGEST_FACTOR, _SCHEMA_FACTOR, _FACTOR = 400, 200, 110
"""Bytes of memory for one of a constraint's text, as measured: with `substring_chars`, of schemas, of all others."""


class GrammarCache:
    """Grammars, and sentences that say why there is none; any thread may use it. Beyond the bound those leave that were
    not asked for the longest, but whoever uses a grammar shares it, also one that is larger than the bound.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[Grammar | str, int]] = OrderedDict()
        self._used: WeakValueDictionary[bytes, Grammar] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Grammar | str | None:
        """What is known of the constraint with that key."""
        digest = _digest(key)
        with self._lock:
            if digest not in self._kept:
                return self._used.get(digest)
            self._kept.move_to_end(digest)
            return self._kept[digest][0]

    def put(self, key: bytes, compiled: Grammar | str, size: int) -> None:
        """Keep it, in place of one that is there; `size` is in bytes."""
        digest = _digest(key)
        with self._lock:
            self._bytes += size - self._kept.pop(digest, ("", 0))[1]
            self._kept[digest] = compiled, size
            if isinstance(compiled, Grammar):
                self._used[digest] = compiled
            while self._bytes > self._most_bytes:
                _, (_, left) = self._kept.popitem(last=False)
                self._bytes -= left


def estimated_bytes(constraint: Constraint, key: bytes) -> int:
    """The memory that a constraint's grammar takes."""
    if constraint.grammar is not None and "substring_chars" in constraint.grammar:
        return _LEAST_BYTES + _LARGEST_FACTOR * len(key)
    return _LEAST_BYTES + (_FACTOR if constraint.json_schema is None else _SCHEMA_FACTOR) * len(key)


def refusal_bytes(sentence: str) -> int:
    """The memory that is taken by a sentence that is kept."""
    return _REFUSAL_BYTES + 2 * len(sentence)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest()

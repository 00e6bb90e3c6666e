"""Compiled grammars and refusals, kept for later requests within a memory limit.

Knows estimates of sizes; not what is compiled, nor what a grammar is used for.
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
"""Bytes of the smallest grammar."""
_REFUSAL_BYTES = 400
"""Bytes of a digest and its entry, without the sentence."""
_LARGEST_FACTOR, _SCHEMA_FACTOR, _FACTOR = 400, 200, 110
"""Bytes of memory per byte of a constraint's text, as measured: with `substring_chars`, for schemas, for all others."""


class GrammarCache:
    """Grammars, or sentences that say why there is none; any thread may use it.

    Beyond the limit the least recently used entries are evicted. A grammar in use stays shared, also one that is larger
    than the limit.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[Grammar | str, int]] = OrderedDict()
        self._used: WeakValueDictionary[bytes, Grammar] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Grammar | str | None:
        """The cached grammar or refusal of a key."""
        digest = _digest(key)
        with self._lock:
            if digest not in self._kept:
                return self._used.get(digest)
            self._kept.move_to_end(digest)
            return self._kept[digest][0]

    def put(self, key: bytes, compiled: Grammar | str, size: int) -> None:
        """Cache it, in place of an older entry; `size` is in bytes."""
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
    """The memory that a cached sentence takes."""
    return _REFUSAL_BYTES + 2 * len(sentence)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest()

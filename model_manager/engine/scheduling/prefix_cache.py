"""The prefix cache: which block holds a prefix's keys and values, and which prefixes are being computed.

A full block's digest covers its tokens and everything before them, from the sequence's `cache_key` on (as in vLLM's
prefix cache). Knows digests, tokens and block ids; not who holds a block, nor when one is evicted.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable

from .sequence import Sequence

ChainDigest = Callable[[bytes, bytes], bytes]
_Content = tuple[bytes, bytes]  # the parent's digest (the cache key for a first block), the block's tokens

BEING_COMPUTED = -1
"""Result of `outlook` for a sequence whose next block a running sequence is about to compute."""


def chained_digest(parent: bytes, tokens: bytes) -> bytes:
    """The 256-bit digest of a block's tokens and all tokens before them."""
    return hashlib.blake2b(parent + tokens, digest_size=32).digest()


class PrefixCache:
    """Blocks by content. A sequence without a cache key neither finds nor adds blocks."""

    def __init__(self, block_size: int, digest: ChainDigest = chained_digest) -> None:
        self._block_size = block_size
        self._digest = digest
        self._block_of: dict[bytes, int] = {}
        self._content_of: dict[int, _Content] = {}  # of each cached block: equal digests alone are not trusted
        self._digest_of: dict[int, bytes] = {}
        self._computing: dict[bytes, Sequence] = {}  # announced, but not yet entered or withdrawn

    def __contains__(self, block: int) -> bool:
        return block in self._digest_of

    def match(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's beginning, up to the first token whose logits or states it needs."""
        blocks: list[int] = []
        for index in range(self._most(sequence)):
            block = self._block_of.get(self._digest_at(sequence, index))
            if block is None or self._content_of[block] != self._content(sequence, index):
                break
            blocks.append(block)
        return blocks

    def outlook(self, sequence: Sequence) -> int:
        """How many blocks `match` would find, or BEING_COMPUTED if a running sequence is about to compute the next one.

        An estimate for ordering the queue, not for reuse. It compares digests alone and goes on from its last result,
        so that it is cheap to call for many sequences in every step.
        """
        most, digests, count = self._most(sequence), sequence.block_digests, sequence.num_blocks_seen
        while count and digests[count - 1] not in self._block_of:
            count -= 1
        while count < most and self._digest_at(sequence, count) in self._block_of:
            count += 1
        sequence.num_blocks_seen = count
        return BEING_COMPUTED if count < most and digests[count] in self._computing else count

    def announce(self, sequence: Sequence) -> None:
        """Note that a sequence begins to run: it computes all full blocks that it did not find."""
        if sequence.cache_key:
            for index in range(sequence.num_committed_blocks, sequence.num_tokens // self._block_size):
                self._computing.setdefault(self._digest_at(sequence, index), sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Note that a sequence stops running: it will not compute the rest."""
        for digest in sequence.block_digests[sequence.num_committed_blocks :]:
            if self._computing.get(digest) is sequence:
                del self._computing[digest]

    def enter(self, sequence: Sequence) -> None:
        """Enter the sequence's full blocks that are computed and known to be finite."""
        full = sequence.num_settled_tokens // self._block_size
        if full == sequence.num_committed_blocks or not sequence.cache_key:
            return
        for index in range(sequence.num_committed_blocks, full):
            digest = self._digest_at(sequence, index)
            if self._computing.get(digest) is sequence:
                del self._computing[digest]
            if digest not in self._block_of:
                self._enter(sequence.block_table[index], digest, self._content(sequence, index))
        sequence.num_committed_blocks = full

    def drop(self, block: int) -> bytes:
        """Forget what a block holds; returns its digest."""
        digest = self._digest_of.pop(block)
        del self._block_of[digest], self._content_of[block]
        return digest

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Assert that the maps agree, and that only running sequences are expected to compute blocks."""
        assert {block: digest for digest, block in self._block_of.items()} == self._digest_of
        assert self._content_of.keys() == self._digest_of.keys()
        awaited = {id(sequence): sequence.block_digests[sequence.num_committed_blocks :] for sequence in running}
        assert all(digest in awaited[id(sequence)] for digest, sequence in self._computing.items())

    def _enter(self, block: int, digest: bytes, content: _Content) -> None:
        assert block not in self._digest_of
        self._block_of[digest] = block
        self._digest_of[block] = digest
        self._content_of[block] = content

    def _most(self, sequence: Sequence) -> int:
        return sequence.num_reusable_tokens // self._block_size if sequence.cache_key else 0

    def _digest_at(self, sequence: Sequence, index: int) -> bytes:
        """Computed once a block, in order."""
        digests = sequence.block_digests
        while len(digests) <= index:
            digests.append(self._digest(*self._content(sequence, len(digests))))
        return digests[index]

    def _content(self, sequence: Sequence, index: int) -> _Content:
        parent = sequence.block_digests[index - 1] if index else sequence.cache_key
        start = index * self._block_size
        return parent, array("i", sequence.token_ids[start : start + self._block_size]).tobytes()

"""Which block of the paged KV cache belongs to whom, and which still holds a prefix worth reusing.

Knows block ids, token ids and reference counts; not tensors, nor who should run. The prefix cache follows vLLM's: full
blocks are known by a digest chained over everything before them, and a block that nobody uses keeps its content until
its memory is needed, least recently used first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from model_manager.engine.sequence import Sequence

Digest = Callable[[bytes, bytes], bytes]
_Content = tuple[bytes, bytes]  # the parent's digest, the block's own tokens


def chained_digest(parent: bytes, tokens: bytes) -> bytes:
    """256 bits that stand for a block's tokens and all before them."""
    return hashlib.blake2b(parent + tokens, digest_size=32).digest()


class BlockManager:
    """Hands out blocks; shares those of a common prefix.

    Each block is in exactly one of three places:
      held      by one sequence or more (`_references` > 0); it may be in the prefix cache too
      reusable  by nobody, its content in the prefix cache (`_reusable`, in order of last use)
      blank     by nobody, its content of no use (`_blank`)
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        salt: bytes = b"",
        digest: Digest = chained_digest,
    ) -> None:
        """`salt` sets apart caches whose keys and values differ for the same tokens (another model, an adapter)."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._caching = prefix_caching
        self._digest = digest
        self._root = digest(b"", salt)
        self._references = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[bytes, int] = {}  # the prefix cache
        self._content_of: dict[int, _Content] = {}  # of each block in it, so that equal digests are not trusted
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._blank) + len(self._reusable)

    def allocate(self, sequence: Sequence, keep_free: int = 0) -> bool:
        """Give a waiting sequence blocks for all its tokens, the cached ones first, which then count as computed.

        Returns False, changing nothing, if that would leave fewer than `keep_free` blocks.
        """
        assert not sequence.block_table
        assert sequence.num_computed_tokens == 0
        cached = self._match(sequence)
        fresh = self._blocks_for(sequence.num_tokens) - len(cached)
        revived = sum(self._references[block] == 0 for block in cached)
        if fresh + revived + keep_free > self.num_free:
            return False
        for block in cached:
            self._hold(block)
        sequence.block_table = cached + [self._take() for _ in range(fresh)]
        sequence.num_computed_tokens = len(cached) * self.block_size
        sequence.num_committed_blocks = len(cached)
        return True

    def needs_block(self, sequence: Sequence) -> bool:
        """Whether the sequence's last token has no slot yet."""
        return len(sequence.token_ids) > len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> int:
        """One more block for a running sequence; some block must be free."""
        assert self.needs_block(sequence)
        block = self._take()
        sequence.block_table.append(block)
        return block

    def commit(self, sequence: Sequence) -> None:
        """Enter the full blocks that are computed, and known to be sound, in the prefix cache."""
        full = sequence.num_computed_tokens // self.block_size
        if not self._caching or full == sequence.num_committed_blocks:
            return
        self._extend_digests(sequence, full)
        for index in range(sequence.num_committed_blocks, full):
            digest, block = sequence.block_digests[index], sequence.block_table[index]
            if digest not in self._block_of:
                assert block not in self._digest_of
                self._block_of[digest] = block
                self._digest_of[block] = digest
                self._content_of[block] = self._content(sequence, index)
        sequence.num_committed_blocks = full

    def free(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence, which then has nothing computed.

        Last block first: of a prefix in the cache, the end is given up before the beginning that leads to it.
        """
        for block in reversed(sequence.block_table):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._release(block)
        sequence.block_table = []
        sequence.num_computed_tokens = sequence.num_committed_blocks = 0

    def distrust(self, sequence: Sequence) -> None:
        """Take every block of the sequence out of the prefix cache: what it computed from them was not finite."""
        for block in sequence.block_table:
            if block in self._digest_of:
                self._drop_from_cache(block)

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Assert that every block is in one place, and held exactly by the sequences given."""
        held = Counter(block for sequence in holders for block in sequence.block_table)
        assert self._references == [held[block] for block in range(self.num_blocks)]
        free = [*self._blank, *self._reusable]
        assert sorted(free) == [block for block in range(self.num_blocks) if not held[block]]
        assert all(block in self._digest_of for block in self._reusable)
        assert not any(block in self._digest_of for block in self._blank)
        assert {block: digest for digest, block in self._block_of.items()} == self._digest_of
        assert self._content_of.keys() == self._digest_of.keys()

    def _match(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's beginning; never all of it, for the last token gives the logits."""
        if not self._caching:
            return []
        most = (sequence.num_tokens - 1) // self.block_size
        self._extend_digests(sequence, most)
        blocks: list[int] = []
        for index in range(most):
            block = self._block_of.get(sequence.block_digests[index])
            if block is None or self._content_of[block] != self._content(sequence, index):
                break
            blocks.append(block)
        return blocks

    def _extend_digests(self, sequence: Sequence, count: int) -> None:
        digests = sequence.block_digests
        while len(digests) < count:
            digests.append(self._digest(*self._content(sequence, len(digests))))

    def _content(self, sequence: Sequence, index: int) -> _Content:
        parent = sequence.block_digests[index - 1] if index else self._root
        start = index * self.block_size
        return parent, array("i", sequence.token_ids[start : start + self.block_size]).tobytes()

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._reusable[block]
        self._references[block] += 1

    def _take(self) -> int:
        """A blank block, else the one whose cached content was used least recently."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._reusable.popitem(last=False)
            self._drop_from_cache(block)
        self._references[block] = 1
        return block

    def _release(self, block: int) -> None:
        if block in self._digest_of:
            self._reusable[block] = None
        else:
            self._blank.append(block)

    def _drop_from_cache(self, block: int) -> None:
        del self._block_of[self._digest_of.pop(block)]
        del self._content_of[block]

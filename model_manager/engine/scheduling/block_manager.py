"""Keeps which sequences hold each block of the paged KV cache, and which free blocks still hold a reusable prefix.

A free block keeps its content until its memory is needed; the least recently used block is evicted first. Knows block
ids and reference counts; not tensors, nor which sequence should run. The content of blocks is in prefix_cache.py.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import takewhile

from .prefix_cache import ChainDigest, PrefixCache, chained_digest
from .sequence import Sequence

_LEAST_KEPT = 64
_KEPT_SHARE = 4


class BlockManager:
    """Hands out blocks; sequences with a common prefix share its blocks.

    Each block that may be used is in exactly one of four places:
      held       used by one sequence or more (`_references` > 0); it may be in the prefix cache too
      reusable   free, its content in the prefix cache (`_reusable`, in order of last use)
      blank      free, its content of no use (`_blank`; the one that was freed last is taken first)
      untouched  never used so far: it costs no memory yet where memory is only reserved (`_untouched` and all after it)

    Reusable blocks may take up to a quarter of the most memory that running sequences have held. Beyond this limit, the
    least recently used block is evicted before an untouched block is used. The limit grows when an evicted prefix has
    to be computed again.

    The cache can be cut (`resize`): then only blocks below `num_blocks` are used. A sequence may hold one beyond until
    it is freed. No further sequence gets it, and it is in none of the other places.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, frugal: bool = True, digest: ChainDigest = chained_digest
    ) -> None:
        """`frugal`: spare untouched blocks. False where their memory is allocated anyway (a GPU)."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._frugal = frugal
        self._cache = PrefixCache(block_size, digest)
        self._references = [0] * num_blocks
        self._blank: list[int] = []
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._untouched = 0
        """At most `num_blocks`."""
        self._most_held = 0
        self._regretted = 0
        self._given_up: OrderedDict[bytes, None] = OrderedDict()  # evicted early, while blocks were still untouched

    @property
    def num_free(self) -> int:
        """Number of blocks that no sequence holds."""
        return len(self._blank) + len(self._reusable) + self.num_blocks - self._untouched

    def allocate(self, sequence: Sequence, keep_free: int = 0) -> bool:
        """Give a waiting sequence blocks for all its tokens, the cached ones first, which then count as computed.

        Returns False, changing nothing, if that would leave fewer than `keep_free` blocks.
        """
        assert not sequence.block_table
        assert sequence.num_computed_tokens == 0
        cached = self._cached(sequence)
        if self._taken_by(sequence, cached) + keep_free > self.num_free:
            return False
        for block in cached:
            self._hold(block)
        sequence.block_table = cached + [self._take() for _ in range(self._num_blocks(sequence) - len(cached))]
        sequence.num_computed_tokens = len(cached) * self.block_size
        sequence.num_recomputed_tokens += max(0, sequence.num_dropped_tokens - sequence.num_computed_tokens)
        sequence.num_dropped_tokens = 0
        sequence.num_committed_blocks = len(cached)
        self._cache.announce(sequence)
        self._regret(sequence)
        return True

    def fits(self, sequence: Sequence, keep_free: int) -> bool:
        """Whether `allocate` would give a waiting sequence its blocks."""
        return self._taken_by(sequence, self._cached(sequence)) + keep_free <= self.num_free

    def fit_together(self, sequences: Iterable[Sequence], keep_free: int) -> bool:
        """Whether `allocate` would probably give all of these waiting sequences their blocks."""
        wanted = sum(self._num_blocks(each) - max(0, self.outlook(each)) for each in sequences)
        return wanted + keep_free <= self.num_free

    def _cached(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's beginning that it may use."""
        return list(takewhile(lambda block: block < self.num_blocks, self._cache.match(sequence)))

    def _taken_by(self, sequence: Sequence, cached: list[int]) -> int:
        """How many free blocks a sequence with these cached blocks takes."""
        revived = sum(self._references[block] == 0 for block in cached)
        return self._num_blocks(sequence) - len(cached) + revived

    def _num_blocks(self, sequence: Sequence) -> int:
        return -(-sequence.num_tokens // self.block_size)

    def outlook(self, sequence: Sequence) -> int:
        """Cached blocks of a waiting sequence, or BEING_COMPUTED: see PrefixCache.outlook."""
        return self._cache.outlook(sequence)

    def needs_block(self, sequence: Sequence, ahead: int = 0) -> bool:
        """True if the sequence's last token, or the one `ahead` of it, has no slot yet."""
        return sequence.num_tokens + ahead > len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> int:
        """One more block for a running sequence; some block must be free."""
        block = self._take()
        sequence.block_table.append(block)
        return block

    def commit(self, sequence: Sequence) -> None:
        """Enter full blocks that are computed and known to be finite in the prefix cache."""
        self._cache.enter(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence, which then has nothing computed.

        Last block first: the end of a cached prefix is evicted before the beginning that leads to it.
        """
        self._cache.withdraw(sequence)
        for block in reversed(sequence.block_table):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._release(block)
        sequence.block_table = []
        sequence.num_computed_tokens = sequence.num_committed_blocks = sequence.num_draft_computed_tokens = 0

    def distrust(self, sequence: Sequence) -> None:
        """Take every block of the sequence out of the prefix cache: what it computed from them was not finite."""
        for block in sequence.block_table:
            if block in self._cache:
                self._cache.drop(block)

    def resize(self, num_blocks: int) -> None:
        """Use the first `num_blocks` blocks, at most as many as there were at first. What the others have kept for
        reuse is forgotten.
        """
        assert 0 < num_blocks <= len(self._references)
        touched = (block for block in range(self._untouched, num_blocks) if self._references[block])
        end = 1 + max(touched, default=self._untouched - 1)  # where it grows while sequences hold blocks beyond
        self._blank += [block for block in range(self._untouched, end) if not self._references[block]]
        self.num_blocks, self._untouched = num_blocks, min(end, num_blocks)
        self._blank = [block for block in self._blank if block < num_blocks]
        for block in [block for block in self._reusable if block >= num_blocks]:
            del self._reusable[block]
            self._cache.drop(block)
        while len(self._given_up) > num_blocks:
            self._given_up.popitem(last=False)

    def is_beyond(self, sequence: Sequence) -> bool:
        """Whether a sequence holds a block that is not to be used any more."""
        return max(sequence.block_table, default=-1) >= self.num_blocks

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Assert that every block is in one place, and held exactly by the sequences given."""
        running = list(running)
        held = Counter(block for sequence in running for block in sequence.block_table)
        assert self._references == [held[block] for block in range(len(self._references))]
        free = [*self._blank, *self._reusable, *range(self._untouched, self.num_blocks)]
        assert sorted(free) == [block for block in range(self.num_blocks) if not held[block]]
        assert all(block in self._cache for block in self._reusable)
        beyond = [block for block in range(self.num_blocks, len(self._references)) if not held[block]]
        unused = (*self._blank, *range(self._untouched, self.num_blocks), *beyond)
        assert not any(block in self._cache for block in unused)
        assert len(self._given_up) <= self.num_blocks
        self._cache.check_integrity(running)

    def _hold(self, block: int) -> None:
        if self._references[block] == 0:
            del self._reusable[block]
        self._references[block] += 1

    def _take(self) -> int:
        """Take a blank block; else an untouched one, unless too many are kept for reuse; else evict a reusable one."""
        if self._blank:
            block = self._blank.pop()
        elif self._untouched < self.num_blocks and len(self._reusable) <= self._most_kept():
            block = self._untouched
            self._untouched += 1
        else:
            block, _ = self._reusable.popitem(last=False)
            self._note_given_up(self._cache.drop(block))
        self._references[block] = 1
        return block

    def _most_kept(self) -> int:
        """Most blocks kept for reuse before untouched memory may be used."""
        if not self._frugal:
            return self.num_blocks
        self._most_held = max(self._most_held, self._untouched - len(self._reusable))
        return max(_LEAST_KEPT, self._most_held // _KEPT_SHARE) + self._regretted

    def _note_given_up(self, digest: bytes) -> None:
        if self._untouched < self.num_blocks:
            self._given_up[digest] = None
            if len(self._given_up) > self.num_blocks:
                self._given_up.popitem(last=False)

    def _regret(self, sequence: Sequence) -> None:
        """Count blocks that the sequence computes again only because they were evicted early."""
        if self._given_up:
            for digest in sequence.block_digests[sequence.num_committed_blocks :]:
                if digest in self._given_up:
                    del self._given_up[digest]
                    self._regretted += 1

    def _release(self, block: int) -> None:
        if block >= self.num_blocks:
            if block in self._cache:
                self._cache.drop(block)
        elif block in self._cache:
            self._reusable[block] = None
        else:
            self._blank.append(block)

from __future__ import annotations

import pytest

from millrace.model_manager.engine.scheduling.block_manager import BlockManager
from millrace.model_manager.engine.scheduling.prefix_cache import BEING_COMPUTED, Digest, chained_digest
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopConditions
from millrace.model_manager.wire.messages import Request
from millrace.model_manager.wire.sampling import SamplingParams

SIZE = 4


def sequence(*tokens: int, salt: str = "", prefix_caching: bool = True) -> Sequence:
    params = SamplingParams(cache_salt=salt)
    conditions = StopConditions(params, 99, (), None)
    return Sequence(Request("a", list(tokens), params), conditions, now=0.0, prefix_caching=prefix_caching)


def compute(blocks: BlockManager, seq: Sequence) -> Sequence:
    """Allocate and compute a sequence, as a step with finite logits does."""
    assert blocks.allocate(seq)
    seq.num_computed_tokens = seq.num_tokens
    blocks.commit(seq)
    return seq


def cached(blocks: BlockManager, *tokens: int) -> int:
    """Tokens of this prompt that the cache holds."""
    return len(blocks._cache.match(sequence(*tokens))) * SIZE


def test_a_sequence_gets_blocks_for_all_its_tokens_and_gives_them_back() -> None:
    blocks = BlockManager(8, SIZE)
    seq = sequence(*range(9))
    assert blocks.allocate(seq)
    assert len(set(seq.block_table)) == 3
    assert blocks.num_free == 5
    blocks.check_integrity([seq])
    blocks.free(seq)
    assert blocks.num_free == 8
    blocks.check_integrity([])


def test_allocation_that_does_not_fit_changes_nothing() -> None:
    blocks = BlockManager(4, SIZE)
    seq = sequence(*range(9))
    assert not blocks.allocate(seq, keep_free=2)
    assert (seq.block_table, blocks.num_free) == ([], 4)
    assert blocks.allocate(seq, keep_free=1)


def test_cached_blocks_that_nobody_holds_count_against_what_is_free() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.free(compute(blocks, sequence(*range(8))))
    assert not blocks.allocate(sequence(*range(9)), keep_free=2)
    assert blocks.allocate(sequence(*range(9)), keep_free=1)


def test_a_common_beginning_is_held_by_both() -> None:
    blocks = BlockManager(8, SIZE)
    first = compute(blocks, sequence(*range(10)))
    second = compute(blocks, sequence(*range(8), 99, 98))
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    blocks.check_integrity([first, second])
    blocks.free(first)
    blocks.check_integrity([second])
    assert blocks.num_free == 5


@pytest.mark.parametrize(("length", "reused"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_the_whole_prompt_is_never_matched(length: int, reused: int) -> None:
    blocks = BlockManager(8, SIZE)
    blocks.free(compute(blocks, sequence(*range(12))))
    assert cached(blocks, *range(length)) == reused


def test_only_what_is_computed_is_cached() -> None:
    blocks = BlockManager(8, SIZE)
    seq = sequence(*range(12))
    blocks.allocate(seq)
    seq.num_computed_tokens = 7
    blocks.commit(seq)
    assert cached(blocks, *range(12)) == 4


def test_the_same_tokens_after_others_do_not_match() -> None:
    blocks = BlockManager(8, SIZE)
    compute(blocks, sequence(1, 1, 1, 1, 2, 2, 2, 2, 3))
    assert cached(blocks, 2, 2, 2, 2, 3) == 0
    assert cached(blocks, 9, 9, 9, 9, 2, 2, 2, 2, 3) == 0


def test_equal_digests_of_different_tokens_do_not_match() -> None:
    blocks = BlockManager(8, SIZE, digest=lambda *_: b"always the same")
    compute(blocks, sequence(1, 1, 1, 1, 5))
    assert cached(blocks, 2, 2, 2, 2, 5) == 0
    assert cached(blocks, 1, 1, 1, 1, 5) == 4


@pytest.mark.parametrize("digest", [chained_digest, lambda *_: b"always the same"])
def test_another_salt_finds_nothing(digest: Digest) -> None:
    blocks = BlockManager(8, SIZE, digest=digest)
    blocks.free(compute(blocks, sequence(1, 1, 1, 1, 2, salt="a")))
    for salt, found in (("a", 1), ("b", 0), ("", 0)):
        assert len(blocks._cache.match(sequence(1, 1, 1, 1, 3, salt=salt))) == found
    assert len(chained_digest(b"", b"")) >= 16


def test_without_prefix_caching_nothing_is_reused() -> None:
    blocks = BlockManager(8, SIZE)
    blocks.free(compute(blocks, sequence(*range(9), prefix_caching=False)))
    assert cached(blocks, *range(9)) == 0
    blocks.free(compute(blocks, sequence(*range(9))))
    assert not blocks._cache.match(sequence(*range(9), prefix_caching=False))


def test_what_is_being_computed_is_known_until_it_is_there() -> None:
    blocks = BlockManager(8, SIZE)
    computing, other = sequence(1, 1, 1, 1, 2, 2, 2, 2, 3), sequence(1, 1, 1, 1, 2, 2, 2, 2, 4)
    assert blocks.outlook(other) == 0
    blocks.allocate(computing)
    assert blocks.outlook(other) == BEING_COMPUTED
    assert blocks.outlook(sequence(1, 1, 1, 1)) == 0  # its last token it computes itself
    assert blocks.outlook(sequence(1, 1, 1, 1, 2, salt="x")) == 0
    computing.num_computed_tokens = 9
    blocks.commit(computing)
    assert blocks.outlook(other) == 2
    blocks.check_integrity([computing])


@pytest.mark.parametrize("distrusted", [True, False])
def test_what_is_not_going_to_be_computed_is_waited_for_no_more(distrusted: bool) -> None:
    blocks = BlockManager(8, SIZE)
    computing, other = sequence(1, 1, 1, 1, 2), sequence(1, 1, 1, 1, 3)
    blocks.allocate(computing)
    assert blocks.outlook(other) == BEING_COMPUTED
    if distrusted:
        blocks.distrust(computing)
    blocks.free(computing)
    assert blocks.outlook(other) == 0
    blocks.check_integrity([])


def test_the_outlook_forgets_what_was_given_up() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.free(compute(blocks, sequence(1, 1, 1, 1, 2, 2, 2, 2)))
    waiting = sequence(1, 1, 1, 1, 2, 2, 2, 2, 3)
    assert blocks.outlook(waiting) == 2
    blocks.free(compute(blocks, sequence(*[8] * 9)))
    assert blocks.outlook(waiting) == 1


def test_memory_follows_what_runs_and_not_what_is_kept() -> None:
    """200 prompts that share nothing, one at a time: kept for reuse are 64 blocks, not the whole cache."""
    blocks = BlockManager(1000, SIZE)
    for n in range(200):
        blocks.free(compute(blocks, sequence(*[n] * 9)))
    assert blocks.num_touched == 64 + 3
    assert blocks.num_free == 1000
    assert cached(blocks, *[199] * 9) == 8
    assert cached(blocks, *[99] * 9) == 0
    blocks.check_integrity([])


def test_a_cache_that_would_have_been_of_use_grows() -> None:
    """60 prompts of 2 blocks again and again: they are 120 blocks, which the third round finds."""
    blocks = BlockManager(1000, SIZE)
    found = []
    for _ in range(3):
        sequences = [sequence(*[n] * 9) for n in range(60)]
        for each in sequences:
            blocks.free(compute(blocks, each))
        found.append(sum(cached(blocks, *[n] * 9) for n in range(60)) // SIZE)
    assert found == [66, 120, 120]


def test_where_memory_is_taken_anyway_all_of_it_is_used_before_anything_is_given_up() -> None:
    blocks = BlockManager(400, SIZE, frugal=False)
    for n in range(200):
        blocks.free(compute(blocks, sequence(*[n] * 8)))
    assert all(cached(blocks, *[n] * 8, 0) == 8 for n in range(200))


def test_what_was_used_least_recently_is_given_up_first_and_ends_before_beginnings() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.free(compute(blocks, sequence(1, 1, 1, 1, 2, 2, 2, 2)))
    blocks.free(compute(blocks, sequence(3, 3, 3, 3)))
    blocks.free(compute(blocks, sequence(*[8] * 5)))  # takes the blank block, then the end of the oldest
    assert cached(blocks, 1, 1, 1, 1, 2, 2, 2, 2, 0) == 4
    assert cached(blocks, 3, 3, 3, 3, 0) == 4
    blocks.check_integrity([])


def test_a_block_in_use_is_never_given_up() -> None:
    blocks = BlockManager(3, SIZE)
    first = compute(blocks, sequence(1, 1, 1, 1))
    second = compute(blocks, sequence(2, 2, 2, 2, 2))
    assert not blocks.allocate(sequence(3))
    blocks.check_integrity([first, second])


def test_growing_takes_a_block_only_when_the_last_is_full() -> None:
    blocks = BlockManager(3, SIZE)
    seq = compute(blocks, sequence(1, 1, 1))
    seq.append(1)
    assert not blocks.needs_block(seq)
    seq.append(1)
    assert blocks.needs_block(seq)
    assert seq.block_table[-1] != blocks.grow(seq)
    blocks.check_integrity([seq])


def test_two_that_computed_the_same_share_it_from_then_on() -> None:
    blocks = BlockManager(8, SIZE)
    one, other = sequence(1, 1, 1, 1, 2), sequence(1, 1, 1, 1, 3)
    assert blocks.allocate(one)
    assert blocks.allocate(other)
    for seq in (one, other):
        seq.num_computed_tokens = 5
        blocks.commit(seq)
    blocks.check_integrity([one, other])
    blocks.free(one)
    blocks.free(other)
    assert cached(blocks, 1, 1, 1, 1, 2) == 4
    blocks.check_integrity([])


def test_distrusted_blocks_leave_the_cache_and_stay_with_their_holders() -> None:
    blocks = BlockManager(8, SIZE)
    first = compute(blocks, sequence(1, 1, 1, 1, 2))
    second = compute(blocks, sequence(1, 1, 1, 1, 3))
    blocks.distrust(second)
    blocks.free(second)
    blocks.check_integrity([first])
    assert cached(blocks, 1, 1, 1, 1, 2) == 0
    blocks.free(first)
    assert blocks.num_free == 8

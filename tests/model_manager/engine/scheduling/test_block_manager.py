"""Blocks of the cache: who holds them, which are kept for reuse, and in which order they go."""

from __future__ import annotations

import pytest

from millrace.model_manager.engine.scheduling.block_manager import BlockManager
from millrace.model_manager.engine.scheduling.prefix_cache import BEING_COMPUTED
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopConditions
from millrace.model_manager.wire.request import Request
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


def test_cached_blocks_that_nobody_holds_count_against_what_is_free() -> None:
    blocks = BlockManager(4, SIZE)
    blocks.free(compute(blocks, sequence(*range(8))))
    assert not blocks.allocate(sequence(*range(9)), keep_free=2)
    assert blocks.allocate(sequence(*range(9)), keep_free=1)


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
    assert blocks._untouched == 64 + 3
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


def test_of_a_cache_that_is_cut_the_first_blocks_are_used_and_it_grows_again() -> None:
    blocks = BlockManager(8, SIZE)
    kept = [compute(blocks, sequence(*[n] * 8)) for n in range(4)]
    for each in kept:
        blocks.free(each)
    blocks.resize(5)
    assert blocks.num_free == 5
    assert [cached(blocks, *[n] * 8, 0) for n in range(4)] == [8, 8, 4, 0]
    blocks.check_integrity([])
    assert not blocks.allocate(sequence(*[9] * 21))
    blocks.resize(8)
    assert blocks.num_free == 8
    whole = sequence(*[9] * 32)
    assert blocks.allocate(whole)
    blocks.check_integrity([whole])


def test_nobody_gets_a_block_beyond_the_end_that_a_sequence_still_holds() -> None:
    blocks = BlockManager(8, SIZE)
    low, high = compute(blocks, sequence(*[1] * 12)), compute(blocks, sequence(*[2] * 12))
    blocks.resize(4)
    assert not blocks.is_beyond(low)
    assert blocks.is_beyond(high)
    other = sequence(*[2] * 12, 3)
    assert not blocks.allocate(other)
    blocks.free(low)
    assert blocks.allocate(other)
    assert other.num_computed_tokens == 4, "of three blocks that are cached, the cache's end leaves the first"
    assert max(other.block_table) < 4
    blocks.check_integrity([high, other])
    blocks.free(high)
    blocks.check_integrity([other])


def test_a_block_that_was_beyond_the_end_is_used_again_once_the_cache_grows() -> None:
    blocks = BlockManager(8, SIZE)
    low, high = compute(blocks, sequence(*[1] * 12)), compute(blocks, sequence(*[2] * 16))
    blocks.resize(3)
    blocks.free(low)
    blocks.resize(8)
    blocks.check_integrity([high])
    assert blocks.num_free == 4
    blocks.free(high)
    assert cached(blocks, *[2] * 16, 0) == 16
    blocks.check_integrity([])

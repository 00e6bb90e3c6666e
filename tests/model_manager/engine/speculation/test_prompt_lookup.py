from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.engine.speculation.prompt_lookup import look_up


def guess(tokens: list[int], count: int = 3, shortest: int = 2, longest: int = 4) -> list[int]:
    table = np.array([[*tokens, 99, 98, 97]], np.int32)  # what lies behind a sequence is no part of it
    (guessed,) = look_up(table, np.array([len(tokens)]), np.array([count]), shortest=shortest, longest=longest)
    return guessed


def test_what_followed_the_same_tokens_before_is_guessed() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 9, 2, 3]) == [4, 5, 6]


def test_a_longer_match_counts_before_a_later_one() -> None:
    assert guess([7, 1, 2, 3, 50, 60, 70, 8, 2, 3, 51, 61, 71, 7, 1, 2, 3]) == [50, 60, 70]


def test_of_equal_matches_the_latest_counts() -> None:
    assert guess([1, 2, 50, 60, 70, 1, 2, 51, 61, 71, 1, 2]) == [51, 61, 71]


def test_tokens_further_back_than_the_longest_match_do_not_count() -> None:
    tokens = [9, 1, 2, 50, 60, 70, 8, 1, 2, 51, 61, 71, 9, 1, 2]
    assert guess(tokens, longest=2) == [51, 61, 71]
    assert guess(tokens, longest=3) == [50, 60, 70]


def test_matches_shorter_than_the_shortest_are_none() -> None:
    assert guess([3, 1, 4, 4, 9, 1]) == []
    assert guess([3, 1, 4, 4, 9, 1], shortest=1) == [4, 4, 9]


def test_a_guess_that_reaches_the_end_repeats() -> None:
    assert guess([5, 6, 5, 6, 5, 6], count=5) == [5, 6, 5, 6, 5]
    assert guess([4, 4, 4], count=4) == [4, 4, 4, 4]


def test_sequences_too_short_to_repeat_get_no_guess() -> None:
    assert guess([1]) == []
    assert guess([1, 1]) == []


def test_each_row_has_its_own_length_and_count() -> None:
    table = np.array([[1, 2, 3, 1, 2, 0, 0], [1, 2, 8, 9, 1, 2, 0], [1, 2, 3, 4, 5, 6, 7]], np.int32)
    assert look_up(table, np.array([5, 6, 7]), np.array([1, 2, 3])) == [[3], [8, 9], []]


def test_no_sequences_have_no_guesses() -> None:
    assert look_up(np.zeros((0, 4), np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64)) == []


SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=5)


@given(sequences=SEQUENCES, count=st.integers(1, 6), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_all_rows_at_once_say_what_a_search_by_hand_says(
    sequences: list[list[int]], count: int, shortest: int, more: int
) -> None:
    table = np.full((len(sequences), 32), -1, np.int32)
    for row, tokens in enumerate(sequences):
        table[row, : len(tokens)] = tokens
    lengths, counts = np.array([len(tokens) for tokens in sequences]), np.full(len(sequences), count)
    guesses = look_up(table, lengths, counts, shortest=shortest, longest=shortest + more)
    assert guesses == [searched(tokens, count, shortest, shortest + more) for tokens in sequences]


def searched(tokens: list[int], count: int, shortest: int, longest: int) -> list[int]:
    for length in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                copied = list(tokens)
                for _ in range(count):
                    copied.append(copied[start + length + len(copied) - len(tokens)])
                return copied[len(tokens) :]
    return []

"""Which characters a token wrote, and how sure the model was of a value."""

import pytest

from transforms.typed.alignment import Confidence, token_ranges


def test_tokens_stand_one_behind_the_other() -> None:
    assert token_ranges('{"a": 12}', ['{"', "a", '":', " ", "1", "2", "}"]) == [
        (0, 2),
        (2, 3),
        (3, 5),
        (5, 6),
        (6, 7),
        (7, 8),
        (8, 9),
    ]


def test_parts_of_a_character_stand_on_the_whole_of_it() -> None:
    assert token_ranges('"😀"', ['"', "\ufffd", "\ufffd", '"']) == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert token_ranges("é", ["\ufffd", "\ufffd"]) == [(0, 1), (0, 1)]


def test_a_replacement_character_that_is_one_stands_where_it_is() -> None:
    assert token_ranges("a\ufffdb", ["a", "\ufffd", "b"]) == [(0, 1), (1, 2), (2, 3)]


def test_a_space_that_decoding_drops_is_no_obstacle_and_the_end_token_stands_nowhere() -> None:
    assert token_ranges("ab c", [" ab", " c", ""]) == [(0, 2), (2, 4), (4, 4)]


def test_confidence_is_the_mean_of_the_free_tokens_of_a_range() -> None:
    confidence = Confidence([(0, 2), (2, 4), (4, 6), (6, 6)], [-1.0, -2.0, -4.0, -9.0], forced=[0])
    assert confidence.over((0, 6)) == pytest.approx(-3.0)
    assert confidence.over((0, 3)) == -2.0
    assert confidence.over((0, 2)) == 0.0

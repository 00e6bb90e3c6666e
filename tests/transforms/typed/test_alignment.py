"""The characters that a token wrote, and how sure the model was of a value."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.transforms.typed.alignment import Confidence, token_ranges


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


_RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)))


@given(_RANGES, st.tuples(st.integers(0, 6), st.integers(7, 13)), st.randoms())
def test_confidence_is_of_all_tokens_that_wrote_any_of_the_characters(
    ranges: list[tuple[int, int]], where: tuple[int, int], chance: Any
) -> None:
    logprobs = [-chance.random() for _ in ranges]
    forced = [at for at in range(len(ranges)) if chance.random() < 0.3]
    free = [at for at, (start, end) in enumerate(ranges) if at not in forced and start < end]
    wrote = [logprobs[at] for at in free if ranges[at][0] < where[1] and ranges[at][1] > where[0]]
    assert Confidence(ranges, logprobs, forced).over(where) == (math.fsum(wrote) / len(wrote) if wrote else 0.0)


def test_confidence_of_a_value_looks_at_its_own_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    class Counted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looked
            looked += len(self)
            return super().__iter__()

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            return Counted(found) if isinstance(at, slice) else found

    confidence = Confidence([(at, at + 1) for at in range(10_000)], [-1.0] * 10_000, forced=[])
    monkeypatch.setattr(confidence, "_free", Counted(confidence._free))
    for at in range(0, 10_000, 4):
        assert confidence.over((at, at + 4)) == -1.0
    assert looked <= 10_000

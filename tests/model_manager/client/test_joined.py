"""No id of a caller's is ever one that the client derives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.client.joined import callers_id, sibling_id
from millrace.model_manager.wire.errors import InvalidRequest

_IDS = st.text(st.sampled_from("a#1\x1f"), max_size=6)


@given(_IDS, _IDS, st.integers(1, 63))
def test_a_callers_id_is_refused_or_is_no_siblings(mine: str, other: str, index: int) -> None:
    try:
        accepted = callers_id(mine)
    except InvalidRequest:
        return
    assert accepted == mine
    assert mine != sibling_id(other, index)


@given(st.lists(st.tuples(_IDS.filter(lambda name: "\x1f" not in name), st.integers(0, 63)), unique=True))
def test_siblings_of_different_families_or_places_have_different_ids(siblings: list[tuple[str, int]]) -> None:
    assert len({sibling_id(*sibling) for sibling in siblings}) == len(siblings)


def test_the_first_of_a_family_has_the_callers_id() -> None:
    assert sibling_id("a", 0) == "a"


def test_an_id_that_cannot_be_a_callers_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"request_id='a\\x1f1': takes text without U\+001F"):
        callers_id("a\x1f1")

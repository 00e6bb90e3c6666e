from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.tally import Tally


@given(st.lists(st.sampled_from("abc")))
def test_what_counts_zero_is_not_in_it(moves: list[str]) -> None:
    """Each name comes and goes in turn."""
    tally, there = Tally[str](), set[str]()
    for name in moves:
        tally[name] += -1 if name in there else 1
        there ^= {name}
        assert set(tally) == there
        assert tally == Tally(there) == Counter(there)

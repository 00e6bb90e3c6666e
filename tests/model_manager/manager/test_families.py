"""Which engines are known to have a family's prompt."""

import pytest

from millrace.model_manager.manager import families
from millrace.model_manager.manager.families import Families


def test_all_engines_that_got_one_of_a_family_are_known_until_they_end() -> None:
    known = Families()
    known.put("a", 0)
    known.put("a", 2)
    known.put("b", 2)
    assert (known.engines_of("a"), known.engines_of("b"), known.engines_of("c")) == ({0, 2}, {2}, frozenset())
    known.forget(2)
    assert (known.engines_of("a"), known.engines_of("b")) == ({0}, set())


def test_lone_requests_are_no_family() -> None:
    known = Families()
    known.put("", 0)
    assert not known.engines_of("")


def test_the_family_that_was_longest_without_a_request_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_MOST", 2)
    known = Families()
    for name in ("a", "b", "a", "c"):
        known.put(name, 1)
    assert [bool(known.engines_of(name)) for name in "abc"] == [True, False, True]

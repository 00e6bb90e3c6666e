"""Parts of a regular expression that must come: those that are too long are refused at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.grammars.compiling import check, check_quick
from millrace.model_manager.grammars.must_come import MOST, longest_part
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest


@pytest.mark.parametrize(
    ("regex", "length"),
    [
        ("", 0),
        ("abc", 3),
        ("a{1000000000}", 10**9),
        ("a{5,}b", 6),
        ("a{2,9}?b{3}", 5),
        ("a{0,1000000000}", 1),
        ("(ab|c){10}", 10),
        ("(?:ab|cd){10}x", 21),
        ("((a{10}){10}){10}", 1000),
        ("b?a{100}", 100),
        ("b|a{100}", 100),
        ("(a{100})?b", 100),
        ("[]a{100}]{3}", 3),
        (r"\{1000\}\\{3}", 9),
        (r"\p{Lu}{4}\x{41}", 5),
        ("(?P<name>ab)(?i:c)(?i)d", 4),
    ],
)
def test_the_longest_part_is_found(regex: str, length: int) -> None:
    assert longest_part(regex) == length


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", r"\d", "."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_the_length_is_the_least_that_pythons_own_parser_finds(regex: str) -> None:
    least, _ = re._parser.parse(regex).getwidth()
    assert longest_part(f"(?:{regex}){'x' * 1000}") == least + 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a{1000000000}"},
        {"regex": "b?(a{1000}){1000}"},
        {"regex": "a" + "{99}" * 4000},
        {"regex": f"a{{{'9' * 5000}}}"},
        {"grammar": "start: A?\nA: /a{1000000000}/"},
        {"json_schema": {"type": "string", "pattern": "^a{1000000000}$"}},
        {"json_schema": {"required": ["a" * 1_000_000]}},
        {"json_schema": {"properties": {"x": {"required": ["a" * 200_000]}}, "required": ["a" * 200_000]}},
        {"json_schema": {"const": ["a" * 200_000, "b" * 200_000]}},
        {"grammar": f'start: "{"a" * 300_000}"'},
        {"choice": ("a", "b" * 300_000)},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_a_constraint_with_a_part_that_no_output_can_have_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=f"takes parts of at most {MOST} characters that must come"):
        check(Constraint(**fields))  # type: ignore[arg-type]


def test_a_constraint_whose_beginning_alone_takes_too_many_states_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"constraint\.grammar"):
        check(Constraint(grammar="start: /a{240000}/ /b{240000}/"))


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "b?a{101}"},
        {"grammar": f'start: "{"a" * 101}"'},
        {"grammar": 'start: "a"? b{101}\nb: "b"'},
        {"choice": ("a", "b" * 101)},
        {"json_schema": {"enum": ["b" * 101, 5]}},
        {"json_schema": {"properties": {"b" * 101: {}}, "required": ["b" * 101]}},
    ],
)
def test_what_must_come_in_a_row_is_bounded_where_others_wait(fields: dict[str, object]) -> None:
    constraint = Constraint(**fields)  # type: ignore[arg-type]
    check_quick(constraint, 10.0, 200)
    with pytest.raises(InvalidRequest, match=rf"constraint\.{constraint.kind}: takes at most 100 characters"):
        check_quick(constraint, 10.0, 100)


def test_a_constraint_that_fails_after_its_first_choice_is_refused_where_others_wait() -> None:
    with pytest.raises(InvalidRequest, match=r"constraint\.grammar: takes one that makes a smaller automaton"):
        check_quick(Constraint(grammar='start: "a"? b{20000}\nb: "b"'), 10.0, 10**6)

from typing import NamedTuple

import pytest

from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.elements.prompts import as_prompt, seeded, split_key

SAMPLED = SamplingParams(temperature=1.0)


def test_rows_of_ids_of_their_own_are_seeded_by_them_alone() -> None:
    first, again, other = (
        seeded(SAMPLED, Prompt(id=name, text=text)) for name, text in (("a", "A"), ("a", "B"), ("b", "A"))
    )
    assert first.seed == again.seed != other.seed
    assert seeded(SAMPLED, as_prompt({"id": "a", "prompt": "A"})).seed == first.seed
    assert 0 <= (first.seed or -1) < 2**63


@pytest.mark.parametrize("prompt", [as_prompt("a"), Prompt(id="f.txt@0", source="f.txt@0", text="a")])
def test_rows_without_one_are_left_to_the_engine(prompt: Prompt) -> None:
    assert seeded(SAMPLED, prompt).seed is None


def test_a_seed_that_is_given_wins_and_greedy_rows_need_none() -> None:
    prompt = Prompt(id="a", text="A")
    assert seeded(SamplingParams(temperature=1.0, seed=3), prompt).seed == 3
    assert seeded(SamplingParams(), prompt).seed is None


class Row(NamedTuple):
    prompt: str
    id: str


def test_a_pair_is_keyed_unless_its_two_have_names() -> None:
    assert split_key(("k", "A")) == (("k",), "A")
    assert split_key(Row("A", "1")) == ((), Row("A", "1"))
    with pytest.raises(InvalidRequest, match="an element of type Row: takes a Prompt, text"):
        as_prompt(Row("A", "1"))

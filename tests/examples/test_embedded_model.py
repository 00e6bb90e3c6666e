"""The shipped model does what its card says, and its data are what they claim to be."""

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from examples.embedded_model.data import conversations, examples
from examples.embedded_model.evaluate import EVALUATION_SEED, Model, accuracy, judge, load
from examples.embedded_model.prompts import FILES, render
from examples.embedded_model.split import Split
from examples.embedded_model.tokenizer import encode

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "model_manager" / "store" / "embedded" / "millrace-tiny"
PROMPTS = ROOT / "examples" / "prompts"
CLAIMED = ("capitals", "arithmetic", "sentiment", "extraction", "unknown", "repeat")
ASKED = {"arithmetic": 400, "unknown": 400}
"""Held-out questions of a kind, by default 100: in these kinds more answers are wrong, and all are short."""
Loaded = tuple[Model, PreTrainedTokenizerBase]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(MODEL)


@pytest.fixture(scope="module")
def bare() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.fixture(scope="module")
def trained() -> set[str]:
    """Prompts of training."""
    return {turn.prompt for found in islice(conversations(0, Split.TRAIN), 20_000) for turn in found.turns}


@pytest.mark.parametrize("kind", CLAIMED)
def test_no_held_out_question_is_in_training(kind: str, trained: set[str]) -> None:
    held_out = {one.prompt for one in examples(kind, 300, EVALUATION_SEED, Split.HELD_OUT)}
    assert not held_out & trained


def test_the_shipped_files_are_small() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 8_000_000


def test_the_shipped_prompts_are_what_the_generator_writes() -> None:
    for name in FILES:
        assert (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8") == render(name)


def test_no_shipped_prompt_is_in_training(trained: set[str]) -> None:
    for name in ("capitals", "arithmetic", "orders"):
        rows = [json.loads(line) for line in render(name).splitlines()]
        assert not {row["prompt"] for row in rows if "prompt" in row} & trained


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_round_trips_any_text(bare: Tokenizer, text: str) -> None:
    assert bare.decode(bare.encode(text).ids, skip_special_tokens=False) == text


def test_both_libraries_tokenize_alike(bare: Tokenizer) -> None:
    text = "Order 12: 3 x müg — 4.50 EUR\n<|user|>"
    assert AutoTokenizer.from_pretrained(MODEL).encode(text) == bare.encode(text).ids


def test_the_chat_template_begins_with_one_bos_and_ends_where_the_answer_begins() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is 1 + 1?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s><|system|>Answer briefly.<|user|>What is 1 + 1?<|assistant|>"
    for ids in (tokenizer(text)["input_ids"], tokenizer.apply_chat_template(messages, return_dict=False)):
        assert list(ids).count(tokenizer.bos_token_id) == 1


def test_training_sees_what_the_chat_template_writes(bare: Tokenizer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for conversation in islice(conversations(3, Split.TRAIN), 50):
        messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
        for turn in conversation.turns:
            messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.answer}]
        assert tokenizer.apply_chat_template(messages, return_dict=False) == encode(bare, conversation)[0]


@pytest.mark.parametrize("kind", CLAIMED)
def test_the_model_is_right_on_held_out_questions(loaded: Loaded, kind: str) -> None:
    asked = list(examples(kind, ASKED.get(kind, 100), EVALUATION_SEED, Split.HELD_OUT))
    longest = max(len(loaded[1].encode(one.answer, add_special_tokens=False)) for one in asked)
    judged = judge(*loaded, asked, max_new_tokens=longest + 1)  # a longer answer is wrong, however it ends
    assert accuracy(judged) >= 0.95, [one for one in judged if not one.is_right]

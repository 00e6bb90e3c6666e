"""Which tokens of a continuation are scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Encoder

from model_manager.client.encoding import Encoding, Prompt
from model_manager.client.tokenizing import Tokenizer
from model_manager.wire.errors import InvalidRequest, PromptTooLong
from model_manager.wire.messages import ModelInfo
from tests.model_manager.client.tokenizers_made_here import byte_level_bpe, byte_level_bpe_with_bos, save

INFO = ModelInfo("m", "", "", "", "", vocab_size=400, max_model_len=40, max_num_seqs=1, num_blocks=1, block_size=8,
                 eos_token_ids=[], load_seconds=0.0)  # fmt: skip


@pytest.fixture(params=[byte_level_bpe, byte_level_bpe_with_bos], ids=["plain", "with a BOS"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    make: Callable[[], Encoder] = request.param
    return Tokenizer.load(save(make(), tmp_path))


@pytest.mark.parametrize(
    ("context", "continuation", "text"),
    [
        ("The quick", " brown fox", " brown fox"),
        ("The quick ", "brown fox", " brown fox"),  # the space and its word are one token
        ("The qui", "ck fox", "ick fox"),
    ],
)
def test_what_is_scored_begins_with_the_first_token_that_the_context_has_not(
    tokenizer: Tokenizer, context: str, continuation: str, text: str
) -> None:
    ids, first = Encoding(tokenizer, chat=False).continued(context, continuation, INFO)
    assert ids == tokenizer.encode(context + continuation)
    assert tokenizer.decode(ids[first:]) == text


def test_a_first_token_gets_one_before_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level_bpe(), tmp_path))
    ids, first = Encoding(tokenizer, chat=False).continued("T", "he", INFO)
    assert ids == [tokenizer.first_token_id, *tokenizer.encode("The")]
    assert first == 1
    nameless = Tokenizer.load(save(byte_level_bpe(), tmp_path / "nameless", bos_token=None, eos_token=None))
    with pytest.raises(InvalidRequest, match="nothing before it"):
        Encoding(nameless, chat=False).continued("T", "he", INFO)


def test_token_ids_are_appended_as_they_are(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    the, ick = tokenizer.encode("The qu"), tokenizer.encode("ick", add_special_tokens=False)
    assert encoding.continued("The qu", ick, INFO) == ([*the, *ick], len(the))
    assert encoding.continued([5, 6], "ick", INFO) == ([5, 6, *ick], 2)
    assert encoding.continued([5, 6], [6], INFO) == ([5, 6, 6], 2)


def test_a_conversation_is_continued_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=None)
    messages = [{"role": "user", "content": "Hi"}]
    asked = tokenizer.encode_chat(messages)
    prompts: list[Prompt] = ["Hi", messages]
    for prompt in prompts:
        ids, first = encoding.continued(prompt, "hello", INFO)
        assert (ids[:first], tokenizer.decode(ids[first:])) == (asked, "hello")


def test_what_cannot_be_scored_is_refused(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    nothing: list[str | list[int]] = ["", []]
    for empty in nothing:
        with pytest.raises(InvalidRequest, match="continuation is empty"):
            encoding.continued("The", empty, INFO)
    with pytest.raises(InvalidRequest, match="token 400"):
        encoding.continued("The", [400], INFO)
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        encoding.continued([], [3], INFO)
    assert len(encoding.continued([3], [3] * 39, INFO)[0]) == 40
    with pytest.raises(PromptTooLong, match="41 tokens, m has 40 positions"):
        encoding.continued([3], [3] * 40, INFO)


def test_a_generation_leaves_a_position_and_an_embedding_need_not(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    assert len(encoding.prompt([3] * 40, INFO)) == 40
    with pytest.raises(PromptTooLong, match="one is for the output"):
        encoding.prompt([3] * 40, INFO, room=1)

"""The tokens of a continuation that are scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from millrace.model_manager.client import text_cuts
from millrace.model_manager.client.encoding import Encoding, PromptContent
from millrace.model_manager.client.text_cuts import EXPRESSIONS
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.wire.errors import InvalidRequest, PromptTooLong
from tests.model_manager.client.tokenizer_pairs import encode_chat
from tests.model_manager.client.tokenizers_made_here import KINDS, byte_level_bpe, byte_level_bpe_with_bos, save
from tests.model_manager.model_infos import model_info

INFO = model_info(name="m", vocab_size=400, max_model_len=40)


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
    ids, first = Encoding(tokenizer, chat=False).context(context, INFO).continued(continuation)
    assert ids == tokenizer.encode(context + continuation)
    assert tokenizer.decode(ids[first:]) == text


CONTEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12,345.67 metres",
    "Two  spaces and a line\n\nthen more of it  ",
    "A word and a mark <|user|>is it",
    "<s>the end </s> of it and of this",
    "żółć is it Straße nach Köln",
    "no_cut",
    "é e\u0301 and it's",
    "words and don",
]
CONTINUATIONS = [" away", "away", "'t", "s", " ", "  x", "\n", "12", ".", "|>", "er>", "\u0301", " </s> a", "\n\n b c"]


def pretokenized(make: Callable[[], Encoder], split: pre_tokenizers.PreTokenizer, nfc: bool) -> Encoder:
    encoder = make()
    encoder.pre_tokenizer = split
    if nfc:
        encoder.normalizer = normalizers.NFC()
    return encoder


SPLITS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt2 with a space": pre_tokenizers.ByteLevel(add_prefix_space=True),
} | {
    str(number): pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for number, expression in enumerate(EXPRESSIONS)
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("nfc", [False, True])
def test_a_prompt_that_is_tokenized_once_comes_to_the_same_tokens(tmp_path: Path, split: str, nfc: bool) -> None:
    info = replace(INFO, max_model_len=1000)
    for make in (byte_level_bpe, byte_level_bpe_with_bos):
        tokenizer = Tokenizer.load(save(pretokenized(make, SPLITS[split], nfc), tmp_path / make.__name__))
        encoding = Encoding(tokenizer, chat=False)
        assert tokenizer.cut(CONTEXTS[0])
        for context in CONTEXTS:
            prepared = encoding.context(context, info)
            for continuation in CONTINUATIONS:
                ids, first = prepared.continued(continuation)
                whole, alone = tokenizer.encode(context + continuation), tokenizer.encode(context)
                assert ids[-len(whole) :] == whole
                assert whole[: first - len(ids) + len(whole)] == alone[: first - len(ids) + len(whole)]
                assert whole[first - len(ids) + len(whole)] != (alone + [-1] * len(whole))[first]


def test_a_long_prompt_is_tokenized_once_for_all_its_continuations(tokenizer: Tokenizer) -> None:
    encoded: list[int] = []

    class Counting(Tokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            encoded.append(len(text))
            return super().encode(text, add_special_tokens)

    tokenizer.__class__ = Counting
    text = "the lazy dog " * 1000 + "is"
    context = Encoding(tokenizer, chat=False).context(text, replace(INFO, max_model_len=50_000))
    for number in range(50):
        context.continued(f" fox {number}")
    assert sum(encoded) < 2 * len(text)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("nfc", [False, True])
def test_a_long_text_is_tokenized_in_pieces_to_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, nfc: bool
) -> None:
    for make in (byte_level_bpe, byte_level_bpe_with_bos):
        tokenizer = Tokenizer.load(save(pretokenized(make, SPLITS[split], nfc), tmp_path / make.__name__))
        for text in CONTEXTS:
            long = "<s>" + f"{text} and more " * 20
            whole = tokenizer.encode(long), tokenizer.encode(long, add_special_tokens=False)
            with monkeypatch.context() as patch:
                patch.setattr(text_cuts, "_PIECE", 100)
                assert len(list(tokenizer._cuts.pieces(long))) > 3
                assert (tokenizer.encode(long), tokenizer.encode(long, add_special_tokens=False)) == whole


def test_a_text_is_refused_by_the_longest_token_there_is(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptTooLong, match="300,000 characters, m has 10000 positions, of at most 13 characters each"):
        Encoding(tokenizer, False).prompt("x" * 300_000, replace(INFO, max_model_len=10_000))


@pytest.mark.parametrize("kind", ["metaspace_bpe_with_byte_fallback", "unigram_with_metaspace", "word_piece"])
def test_a_text_whose_cuts_are_not_known_is_tokenized_whole(kind: str, tmp_path: Path) -> None:
    assert Tokenizer.load(save(KINDS[kind](), tmp_path)).cut("The quick brown fox") == 0


def test_a_first_token_gets_one_before_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level_bpe(), tmp_path))
    ids, first = Encoding(tokenizer, chat=False).context("T", INFO).continued("he")
    assert ids == [tokenizer.first_token_id, *tokenizer.encode("The")]
    assert first == 1
    nameless = Tokenizer.load(save(byte_level_bpe(), tmp_path / "nameless", bos_token=None, eos_token=None))
    with pytest.raises(InvalidRequest, match="nothing before it"):
        Encoding(nameless, chat=False).context("T", INFO).continued("he")


def test_token_ids_are_appended_as_they_are(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    the, ick = tokenizer.encode("The qu"), tokenizer.encode("ick", add_special_tokens=False)
    assert encoding.context("The qu", INFO).continued(ick) == ([*the, *ick], len(the))
    assert encoding.context([5, 6], INFO).continued("ick") == ([5, 6, *ick], 2)
    assert encoding.context([5, 6], INFO).continued([6]) == ([5, 6, 6], 2)


def test_a_conversation_is_continued_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=None)
    messages = [{"role": "user", "content": "Hi"}]
    asked = encode_chat(tokenizer, messages)
    prompts: list[PromptContent] = ["Hi", messages]
    for prompt in prompts:
        ids, first = encoding.context(prompt, INFO).continued("hello")
        assert (ids[:first], tokenizer.decode(ids[first:])) == (asked, "hello")


def test_what_cannot_be_scored_is_refused(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    nothing: list[str | list[int]] = ["", []]
    for empty in nothing:
        with pytest.raises(InvalidRequest, match="continuation is empty"):
            encoding.context("The", INFO).continued(empty)
    with pytest.raises(InvalidRequest, match="token 400"):
        encoding.context("The", INFO).continued([400])
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        encoding.context([], INFO).continued([3])
    assert len(encoding.context([3], INFO).continued([3] * 39)[0]) == 40
    with pytest.raises(PromptTooLong, match="41 tokens, m has 40 positions"):
        encoding.context([3], INFO).continued([3] * 40)


def test_a_prompt_over_the_setting_is_told_the_setting(tokenizer: Tokenizer) -> None:
    told = "41 tokens, max_model_len=40 leaves m 40 positions"
    with pytest.raises(PromptTooLong, match=told):
        Encoding(tokenizer, False, 40).prompt([3] * 41, INFO)
    with pytest.raises(PromptTooLong, match=told):
        Encoding(tokenizer, False, 40).context([3], INFO).continued([3] * 40)
    with pytest.raises(PromptTooLong, match="41 tokens, m has 40 positions"):
        Encoding(tokenizer, False, 50).prompt([3] * 41, INFO)  # memory, or the model itself, has set a lower limit


def test_a_generation_leaves_a_position_and_an_embedding_need_not(tokenizer: Tokenizer) -> None:
    encoding = Encoding(tokenizer, chat=False)
    assert len(encoding.prompt([3] * 40, INFO)) == 40
    with pytest.raises(PromptTooLong, match="one is for the output"):
        encoding.prompt([3] * 40, INFO, room=1)


class Untokenized:
    """A tokenizer that no text may reach."""

    has_chat_template = False

    def most_characters(self, text: str, tokens: int) -> int:  # noqa: ARG002
        return 512

    def encode(self, text: str, **_: bool) -> list[int]:
        raise AssertionError(f"{len(text)} characters are tokenized")


def test_a_text_that_no_tokens_make_short_enough_is_refused_before_it_is_tokenized() -> None:
    encoding = Encoding(Untokenized(), None)  # type: ignore[arg-type]
    with pytest.raises(
        PromptTooLong, match=r"^the prompt has 30,000,000 characters, \S+ has \d+ positions, of at most"
    ):
        encoding.prompt("x" * 30_000_000, INFO)

"""Token ids become text that ends where it should."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.model_manager.client.generation import text_of, with_texts
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.grammars.token_bytes import load_tokenizer
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob, TopLogprob
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from tests.model_manager.client.tokenizers_made_here import KINDS, save


class Bytes:
    """Token ids are bytes; 0 is a special token."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token or not skip_special_tokens).decode(errors="replace")

    def joined(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def pieces(self, *, joined: bool) -> None:
        raise NotImplementedError


def output(text: bytes, reason: FinishReason, stop: str | int | None = None) -> Output:
    return Output("a", list(text), reason, Timings(0, 0, 0), prompt_tokens=1, stop_reason=stop)


@pytest.mark.parametrize(
    ("given", "stops", "text"),
    [
        (output(b"hello", FinishReason.LENGTH), (), "hello"),
        (output(b"hello\0", FinishReason.STOP), (), "hello"),
        (output(b"hello\x03", FinishReason.STOP, 3), (), "hello"),
        (output(b"a\n\nb", FinishReason.STOP, "\n\n"), ("\n\n",), "a"),
        (output(b"abc;", FinishReason.STOP, ";"), ("\n", ";"), "abc"),
        (output(b"xabc", FinishReason.STOP, "abc"), ("bc", "abc", "ab"), "x"),
        (output("é".encode()[:1], FinishReason.LENGTH), (), ""),
        (output("aé".encode()[:2], FinishReason.LENGTH), (), "a"),
        (output("日本".encode()[:5], FinishReason.LENGTH), (), "日"),
        (output("日本".encode(), FinishReason.LENGTH), (), "日本"),
    ],
)
def test_text_excludes_what_stopped_it_and_ends_in_whole_characters(
    given: Output, stops: tuple[str, ...], text: str
) -> None:
    assert text_of(given, SamplingParams(stop=stops), Bytes()) == text


@pytest.mark.parametrize(
    ("given", "params", "text"),
    [
        (output(b"a\n\nb", FinishReason.STOP, "\n\n"), {"stop": ("\n\n",)}, "a\n\n"),
        (output(b"abc;", FinishReason.STOP, ";"), {"stop": ("\n", ";")}, "abc;"),
        (output(b"xabc", FinishReason.STOP, "abc"), {"stop": ("abc", "ab")}, "xabc"),
        (output(b"hello!", FinishReason.STOP, ord("!")), {}, "hello!"),
        (output(b"hello\0", FinishReason.STOP), {}, "hello"),
    ],
)
def test_text_includes_what_stopped_it_if_asked(given: Output, params: dict[str, Any], text: str) -> None:
    assert text_of(given, SamplingParams(include_stop_str_in_output=True, **params), Bytes()) == text


def test_text_goes_past_stop_strings_that_were_complete_before_min_tokens() -> None:
    given = output(b"a;b;c", FinishReason.STOP, ";")
    for min_tokens, text in ((0, "a"), (2, "a"), (3, "a;b"), (4, "a;b")):
        assert text_of(given, SamplingParams(stop=(";",), min_tokens=min_tokens), Bytes()) == text


def test_text_under_a_constraint_goes_past_stop_strings_that_did_not_end_it() -> None:
    params = SamplingParams(stop=(";",), constraint=Constraint(regex="[a-c;]{4}"))
    assert text_of(output(b"a;b;c;", FinishReason.STOP, ";"), params, Bytes()) == "a;b;c"


def test_text_includes_the_last_token_where_nothing_but_the_constraint_ended_it() -> None:
    params = SamplingParams(constraint=Constraint(regex="[a-c]{4}"), stop_token_ids=(ord("b"),))
    assert text_of(replace(output(b"abcb", FinishReason.STOP), complete=True), params, Bytes()) == "abcb"
    assert text_of(output(b"abcab", FinishReason.STOP, ord("b")), params, Bytes()) == "abca"


def test_text_under_a_constraint_is_all_that_it_was_held_to() -> None:
    params = SamplingParams(constraint=Constraint(choice=("a\ufffd",)))
    assert text_of(output("a\ufffd".encode() + b"\0", FinishReason.STOP), params, Bytes()) == "a\ufffd"


TEXTS = ["a\ufffd", " yes", "  two  spaces ", "the", " it , is .", "\n1", "▁é日", "</ s>"]
HELD = ["byte_level_bpe", "byte_level_bpe_with_bos", "metaspace_bpe_with_byte_fallback", "unigram_with_metaspace"]


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("included", [False, True])
def test_text_under_a_constraint_matches_it_with_every_kind_of_tokenizer(
    kind: str, included: bool, tmp_path: Path
) -> None:
    folder = save(KINDS[kind](), tmp_path)
    tokenizer, guides = Tokenizer.load(folder), load_tokenizer(folder, 1000, [2])
    written = 0
    for text in TEXTS:
        ids = guides.tokenize_str(text)
        if guides.decode_bytes(ids) != text.encode():  # characters that a unigram vocabulary does not have
            continue
        params = SamplingParams(constraint=Constraint(choice=(text,)), include_stop_str_in_output=included)
        given = Output("a", [*ids, 2], FinishReason.STOP, Timings(0, 0, 0), prompt_tokens=1)
        assert text_of(given, params, tokenizer) == text
        assert text_of(replace(given, token_ids=ids, complete=True), params, tokenizer) == text
        written += 1
    assert written >= 3


@pytest.mark.parametrize("kind", HELD)
def test_each_token_is_the_same_text_to_the_client_and_to_the_guide(kind: str, tmp_path: Path) -> None:
    folder = save(KINDS[kind](), tmp_path)
    tokenizer, guides = Tokenizer.load(folder), load_tokenizer(folder, 1000, [2])
    for token in range(KINDS[kind]().get_vocab_size()):
        if not guides.is_special_token(token):
            assert tokenizer.joined([token]) == guides.decode_bytes([token]).decode(errors="replace")


def test_each_token_has_its_log_probability_and_its_own_text() -> None:
    given = Logprobs([-0.5, -1.5], [True, False], [[104, 105], [104, 0]], [[-0.5, -2.0], [-0.25, -3.0]])
    first, second = with_texts([104, 105], given, Bytes()).tokens
    assert first == TokenLogprob("h", 104, -0.5, [TopLogprob("h", 104, -0.5), TopLogprob("i", 105, -2.0)])
    assert (second.token, second.logprob, second.top_logprobs[1].token) == ("i", -1.5, "\0")
    (plain,) = with_texts([104], Logprobs([-0.5], [True]), Bytes()).tokens
    assert plain.top_logprobs == []

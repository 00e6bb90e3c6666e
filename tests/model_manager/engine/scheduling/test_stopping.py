from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

import millrace.model_manager.store
from millrace.model_manager.client.generation import text_of
from millrace.model_manager.engine.scheduling.stopping import Ending, StopRules, StopText
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import ModelCorrupt
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.timings import Timings
from tests.model_manager.engine.scheduling.stop_text_cases import (
    KINDS,
    REPLACEMENT,
    SPECIAL,
    first_stop,
    shown,
    tokenizer_of,
)

FOLDER = Path(millrace.model_manager.store.__file__).parent / "embedded" / EMBEDDED_MODEL
EOS = 1


@cache
def byte_level() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@cache
def byte_fallback() -> Tokenizer:
    """As in Llama 2: words with a mark for the space before them, and a token for each byte."""
    words = ["▁the", "▁end", "end", "▁", "é", "a", "b"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + n for n, word in enumerate(words)}
    tokenizer = Tokenizer(BPE(vocab, [], byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def token(tokenizer: Tokenizer, text: str) -> int:
    token_id = tokenizer.token_to_id(text)
    assert token_id is not None
    return token_id


def endings(params: SamplingParams, tokens: list[int], max_tokens: int = 99) -> list[Ending | None]:
    conditions = StopRules(frozenset({EOS}), byte_level()).conditions(params, max_tokens)
    return [conditions.after(token, n + 1) for n, token in enumerate(tokens)]


def stops(tokenizer: Tokenizer, ids: list[int], *strings: str) -> tuple[int, str] | None:
    """After how many tokens the text stops, and at which string."""
    watch = StopText(tokenizer, strings)
    for count, token_id in enumerate(ids, 1):
        if (string := watch.push(token_id)) is not None:
            return count, string
    return None


def reference(tokenizer: Tokenizer, ids: list[int], *strings: str) -> int | None:
    """The same by decoding everything after each token."""
    texts = (tokenizer.decode(ids[:count]) for count in range(1, len(ids) + 1))
    return next((count for count, text in enumerate(texts, 1) if any(s in text for s in strings)), None)


def test_a_sequence_ends_at_max_tokens() -> None:
    assert endings(SamplingParams(), [5, 5, 5], max_tokens=3) == [None, None, Ending(FinishReason.LENGTH)]


def test_an_end_of_sequence_token_ends_it_without_a_name_unless_ignored() -> None:
    assert endings(SamplingParams(), [5, EOS]) == [None, Ending(FinishReason.STOP)]
    assert endings(SamplingParams(ignore_eos=True), [5, EOS]) == [None, None]


def test_a_stop_token_ends_it_by_name_also_where_end_of_sequence_is_ignored() -> None:
    assert endings(SamplingParams(stop_token_ids=(7, 8)), [5, 8])[1] == Ending(FinishReason.STOP, 8)
    assert endings(SamplingParams(stop_token_ids=(EOS,), ignore_eos=True), [EOS]) == [Ending(FinishReason.STOP, EOS)]


def test_the_last_token_that_max_tokens_allows_may_be_a_stop() -> None:
    assert endings(SamplingParams(), [5, EOS], max_tokens=2)[1] == Ending(FinishReason.STOP)


def test_a_stop_string_ends_it_by_name() -> None:
    ids = byte_level().encode("one two three").ids
    found = [ending for ending in endings(SamplingParams(stop=("two",)), ids) if ending is not None]
    assert found[0] == Ending(FinishReason.STOP, "two")


@pytest.mark.parametrize(
    "stop", ["\n\n", "Answer:", "rld. Ne", "好", "你好", "🎉", "🎉 do", "ï", "e", "naïve 你好, 🎉 done"]
)
def test_a_stop_string_across_tokens_and_within_bytes_is_found_at_its_last_token(stop: str) -> None:
    ids = byte_level().encode("Hello world. Next:\n\nAnswer: naïve 你好, 🎉 done").ids
    found = stops(byte_level(), ids, stop)
    assert found == (reference(byte_level(), ids, stop), stop)


def test_of_several_strings_that_one_token_completes_the_first_in_the_text_is_named() -> None:
    texts = {n: byte_level().decode([n]) for n in range(byte_level().get_vocab_size())}
    token_id, text = next((n, t) for n, t in texts.items() if t.isalpha() and len(set(t)) == len(t) == 4)
    assert stops(byte_level(), [token_id], text[2], text[:3], text[1]) == (1, text[:3])


def test_special_tokens_have_no_text() -> None:
    ids = byte_level().encode("stop").ids
    assert stops(byte_level(), [ids[0], EOS, *ids[1:]], "stop") == (len(ids) + 1, "stop")
    assert stops(byte_level(), [EOS, EOS], str(byte_level().id_to_token(EOS))) is None


def test_a_stop_string_that_starts_with_the_space_of_the_first_word_needs_that_space_in_the_text() -> None:
    end = token(byte_fallback(), "▁end")
    assert stops(byte_fallback(), [end], " end") is None
    assert stops(byte_fallback(), [end, end], " end") == (2, " end")


def test_bytes_that_turn_out_to_be_no_character_do_not_stop_the_watch() -> None:
    end = token(byte_fallback(), "end")
    assert stops(byte_fallback(), [0xC3, 0xA9, 0xE4, end, end], "dend") == (5, "dend")
    assert stops(byte_fallback(), [0xFF] * 50 + [end], "end") == (51, "end")
    assert stops(byte_fallback(), [0xE4, 0xBD] * 20 + [0xE4, 0xBD, 0xA0, end], "end") == (44, "end")


def test_a_character_that_is_not_complete_yet_matches_nothing() -> None:
    assert stops(byte_level(), byte_level().encode("🎉好 x").ids, "\ufffd") is None


def test_text_that_a_later_byte_took_back_does_not_match_with_what_follows() -> None:
    a, b, end = (token(byte_fallback(), text) for text in ("a", "b", "end"))
    assert stops(byte_fallback(), [a, b, 0xC3, 0xA9, 0xE4, end], "éb", "éend") is None


@given(
    ids=st.lists(st.integers(0, 1535), min_size=1, max_size=30),
    strings=st.lists(st.text("ab eé好🎉.", min_size=1, max_size=3), min_size=1, max_size=3),
    data=st.data(),
)
@settings(max_examples=200)
def test_byte_level_text_stops_where_decoding_everything_would(
    ids: list[int], strings: list[str], data: st.DataObject
) -> None:
    text = byte_level().decode(ids).replace("\ufffd", "")
    if text:
        start = data.draw(st.integers(0, len(text) - 1))
        strings.append(text[start : start + data.draw(st.integers(1, 8))])
    found = stops(byte_level(), ids, *strings)
    assert (found and found[0]) == reference(byte_level(), ids, *strings)


@given(
    ids=st.lists(
        st.one_of(
            st.sampled_from([*"é好🎉x"]).map(lambda c: list(c.encode())), st.integers(200, 262).map(lambda n: [n])
        ),
        max_size=6,
    ),
    strings=st.lists(st.text("ab enthé好🎉x", min_size=1, max_size=3), min_size=1, max_size=3),
)
@settings(max_examples=300)
def test_text_of_byte_tokens_stops_where_decoding_everything_would(ids: list[list[int]], strings: list[str]) -> None:
    flat = [token_id for group in ids for token_id in group]
    found = stops(byte_fallback(), flat, *strings)
    assert (found and found[0]) == reference(byte_fallback(), flat, *strings)


def test_a_stop_string_that_was_passed_over_is_not_found_again_behind_a_stray_byte() -> None:
    """A stray byte turns é back into replacement characters, so that the text is searched from its beginning."""
    made = tokenizer_of("metaspace")
    end, x = token(made, "end"), token(made, "x")
    ids = [end, 0xC3, 0xA9, 0xE4, x]
    params = SamplingParams(stop=("nd",), min_tokens=3)
    conditions = StopRules(frozenset(), made).conditions(params, 99)
    assert [conditions.after(token_id, at) for at, token_id in enumerate(ids, 1)] == [None] * 5
    assert conditions.after(end, 6) == Ending(FinishReason.STOP, "nd")


def test_a_character_that_later_bytes_restore_was_there_before() -> None:
    made = tokenizer_of("metaspace")
    ids = [*"é".encode(), *"好".encode(), token(made, "x")]
    assert first_stop(made, ids, ["é"], 3) == (0, set())
    conditions = StopRules(frozenset(), made).conditions(SamplingParams(stop=("é",), min_tokens=3), 99)
    assert [conditions.after(token_id, at) for at, token_id in enumerate(ids, 1)] == [None] * 6


_BYTES = st.one_of(
    st.sampled_from(["é", "好", "\U0001f389", "x", "éa"]).map(lambda text: list(text.encode())),
    st.sampled_from([0xE4, 0xBD, 0xA0, 0xC3, 0xFF, 0xF0]).map(lambda byte: [byte]),
    st.lists(st.sampled_from([*b"aax\xc3\xa9\xff"]), min_size=2, max_size=40),
)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Tokenizer, list[int], list[str], int]:
    """Tokens with stray bytes, stop strings that mostly occur at one time or another, and min_tokens."""
    made = tokenizer_of(draw(st.sampled_from(KINDS)))
    specials = st.integers(1, 20).map(lambda times: [token(made, SPECIAL)] * times)
    words = st.integers(256, made.get_vocab_size() - 1).map(lambda token_id: [token_id])
    ids = [
        each for group in draw(st.lists(_BYTES | words | words | specials, min_size=1, max_size=9)) for each in group
    ]
    strings = draw(st.lists(st.sampled_from(["é", REPLACEMENT, "end", " ", "x好", f"a{REPLACEMENT}"]), max_size=1))
    for _ in range(draw(st.integers(0 if strings else 1, 2))):
        text = shown(made, ids[: draw(st.integers(1, len(ids)))]) or "a"
        start = draw(st.integers(0, len(text) - 1))
        strings.append(text[start : start + draw(st.integers(1, 5))])
    return made, ids, strings, draw(st.integers(0, len(ids)))


class _Decoder:
    def __init__(self, made: Tokenizer) -> None:
        self._made = made

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._made.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def joined(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def pieces(self, *, joined: bool) -> None:
        raise NotImplementedError


@given(outputs())
@settings(max_examples=500)
def test_a_text_stops_at_the_first_token_that_completes_a_string_and_ends_before_it(
    case: tuple[Tokenizer, list[int], list[str], int],
) -> None:
    made, ids, strings, min_tokens = case
    params = SamplingParams(stop=tuple(dict.fromkeys(strings)), min_tokens=min_tokens, max_tokens=max(1, len(ids)))
    conditions = StopRules(frozenset(), made).conditions(params, len(ids) + 1)
    endings = (conditions.after(token_id, count) for count, token_id in enumerate(ids, 1))
    found = next(((count, ending) for count, ending in enumerate(endings, 1) if ending is not None), (0, None))
    count, completed = first_stop(made, ids, strings, min_tokens)
    assert found[0] == count
    if found[1] is None:
        return
    first = min(at for at, _ in completed)
    assert (first, found[1].matched) in completed
    output = Output("a", ids[:count], found[1].reason, Timings(0, 0, 0), prompt_tokens=1, stop_reason=found[1].matched)
    assert text_of(output, params, _Decoder(made)) == made.decode(ids[:count])[:first].rstrip(REPLACEMENT)


def test_a_folder_without_a_tokenizer_serves_all_but_stop_strings(tmp_path: Path) -> None:
    assert StopRules.load(tmp_path, [1]) == StopRules(frozenset({1}), None)
    assert StopRules.load(FOLDER, [1]).tokenizer is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json: is not a tokenizer"):
        StopRules.load(tmp_path, [1])

"""Token ids and chat templates; the standard is transformers' tokenizer for the same files."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import InvalidRequest, ModelCorrupt, ModelNotFound, ModelUnsupported
from tests.model_manager.client.tokenizer_pairs import CHAT, USER, Pair, encode_chat
from tests.model_manager.client.tokenizers_made_here import KINDS, TEXTS, added, byte_level_bpe, save


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {name: Pair(save(make(), folder / name)) for name, make in KINDS.items()}
    return made | {EMBEDDED_MODEL: Pair(resolve(EMBEDDED_MODEL))}


every_kind = pytest.mark.parametrize("kind", [*KINDS, EMBEDDED_MODEL])


@every_kind
def test_ids_and_texts_are_those_of_transformers(pairs: Mapping[str, Pair], kind: str) -> None:
    for text in ["", " ", "\n", *TEXTS, "<s>already there", "a</s>b <|user|>", "Wait , what ? It 's n't !"]:
        pairs[kind].agree_on(text)


@every_kind
def test_long_texts_too(pairs: Mapping[str, Pair], kind: str) -> None:
    pairs[kind].agree_on(" ".join(TEXTS) * 8)


@every_kind
def test_random_unicode_too(pairs: Mapping[str, Pair], kind: str) -> None:
    @settings(max_examples=150)
    @given(st.text(max_size=60))
    def agree(text: str) -> None:
        pairs[kind].agree_on(text)

    agree()


@every_kind
def test_random_ids_decode_as_in_transformers(pairs: Mapping[str, Pair], kind: str) -> None:
    pair = pairs[kind]

    @settings(max_examples=100)
    @given(st.lists(st.integers(0, len(pair.theirs) - 1), max_size=40))
    def agree(ids: list[int]) -> None:
        for skip in (True, False):
            assert pair.ours.decode(ids, skip) == pair.theirs.decode(ids, skip_special_tokens=skip)

    agree()


@every_kind
def test_conversations_are_those_of_transformers(pairs: Mapping[str, Pair], kind: str) -> None:
    pairs[kind].agree_on_chat(CHAT)


@every_kind
def test_random_conversations_too(pairs: Mapping[str, Pair], kind: str) -> None:
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=30)}
    )

    @settings(max_examples=60)
    @given(st.lists(message, min_size=1, max_size=4))
    def agree(messages: list[dict[str, str]]) -> None:
        pairs[kind].agree_on_chat(messages)

    agree()


@every_kind
def test_a_conversation_begins_with_one_bos(pairs: Mapping[str, Pair], kind: str) -> None:
    tokenizer = pairs[kind].ours
    (bos,) = tokenizer.encode("<s>", add_special_tokens=False)
    assert encode_chat(tokenizer, USER).count(bos) == 1


def test_a_template_without_bos_gets_none_as_in_transformers(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    pair = Pair(save(KINDS["byte_level_bpe_with_bos"](), tmp_path, chat_template=template))
    pair.agree_on_chat(CHAT)
    assert encode_chat(pair.ours, USER) == pair.ours.encode("Hi", add_special_tokens=False)


# ── where settings come from ─────────────────────────────────────────────────────────────────────────────────────────


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    pair = Pair(save(byte_level_bpe(), tmp_path, bos_token={"__type": "AddedToken"} | added("<s>", special=True)))
    pair.agree_on_chat(CHAT)
    assert (pair.ours.bos_token, pair.ours.eos_token) == ("<s>", "</s>")


def test_special_tokens_may_come_from_their_map(tmp_path: Path) -> None:
    save(byte_level_bpe(), tmp_path, bos_token=None, eos_token=None)
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}')
    pair = Pair(tmp_path)
    pair.agree_on_chat(CHAT)
    assert (pair.ours.bos_token, pair.ours.eos_token) == ("<s>", "</s>")


def test_tokens_that_only_the_settings_name_are_added(tmp_path: Path) -> None:
    declared = {"900": added("<tool>", special=False, normalized=False), "901": added("<x>", special=True)}
    save(byte_level_bpe(), tmp_path, added_tokens_decoder=declared, extra_special_tokens=["<y>"], pad_token="<pad>")
    pair = Pair(tmp_path)
    for text in ("a<tool>b<x>c<y>d<pad>", "<x><y>"):
        pair.agree_on(text)


def test_a_model_without_special_tokens_has_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level_bpe(), tmp_path, bos_token=None, eos_token=None))
    assert tokenizer.bos_token is None
    assert tokenizer.eos_token is None


@pytest.mark.parametrize("flag", ["add_bos_token", "add_eos_token"])
@pytest.mark.parametrize("value", [True, False])
def test_what_tokenizer_json_adds_wins_over_flags(tmp_path: Path, flag: str, value: bool) -> None:
    for kind in ("byte_level_bpe", "byte_level_bpe_with_bos"):
        Pair(save(KINDS[kind](), tmp_path / kind, **{flag: value})).agree_on("some text")


def test_stored_truncation_and_padding_are_off(tmp_path: Path) -> None:
    encoder = byte_level_bpe()
    encoder.enable_truncation(4)
    encoder.enable_padding(length=16)
    tokenizer = Tokenizer.load(save(encoder, tmp_path))
    text = TEXTS[0]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("a")) == 1


def test_spaces_are_cleaned_only_where_transformers_does(pairs: Mapping[str, Pair]) -> None:
    text = "Wait , what ?"
    bert, bpe = pairs["word_piece"].ours, pairs["byte_level_bpe"].ours
    assert "," in bert.decode(bert.encode(text))
    assert " ," not in bert.decode(bert.encode(text))
    assert bpe.decode(bpe.encode(text)) == text


def test_settings_may_be_missing(tmp_path: Path) -> None:
    (save(byte_level_bpe(), tmp_path) / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Hi")) == "Hi"
    assert not tokenizer.has_chat_template


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("tokenizer.json", "{", ModelCorrupt),
        ("tokenizer.json", "{}", ModelCorrupt),
        ("tokenizer_config.json", "{", ModelCorrupt),
        ("tokenizer_config.json", "[]", ModelCorrupt),
        ("tokenizer_config.json", "[" * 100_000, ModelCorrupt),
        ("tokenizer.json", "[" * 100_000, ModelCorrupt),
        ("chat_template.json", "{", ModelCorrupt),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"7": {"content": true}}}', ModelCorrupt),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', ModelCorrupt),
        ("tokenizer_config.json", '{"extra_special_tokens": [7]}', ModelCorrupt),
        ("tokenizer_config.json", '{"bos_token": 1}', ModelUnsupported),
        ("tokenizer_config.json", '{"chat_template": 1}', ModelUnsupported),
        ("tokenizer_config.json", '{"chat_template": [1]}', ModelUnsupported),
        ("chat_template.jinja", "{% for %}", ModelUnsupported),
    ],
)
def test_broken_files_are_the_models_fault(tmp_path: Path, name: str, text: str, error: type[Exception]) -> None:
    save(byte_level_bpe(), tmp_path, chat_template=None)
    (tmp_path / name).write_text(text)
    with pytest.raises(error):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_whose_library_panics_is_the_models_fault(tmp_path: Path) -> None:
    file = save(byte_level_bpe(), tmp_path) / "tokenizer.json"
    described = json.loads(file.read_bytes())
    assert described["model"]["merges"]
    described["model"]["continuing_subword_prefix"] = "\u00e9" * 9  # longer than the tokens that it should begin
    file.write_text(json.dumps(described))
    with pytest.raises(ModelCorrupt, match="is not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_folder_without_tokenizer_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


# ── what is wrong with a request ─────────────────────────────────────────────────────────────────────────────────────


def test_the_templates_own_words_are_passed_on(pairs: Mapping[str, Pair]) -> None:
    with pytest.raises(InvalidRequest, match="Unknown role!"):
        encode_chat(pairs["byte_level_bpe"].ours, [{"role": "tool", "content": "x"}])


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb" * 5000, 5, None, b"bytes"])
def test_what_is_no_text_is_refused(pairs: Mapping[str, Pair], text: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        pairs["byte_level_bpe"].ours.encode(text)


@pytest.mark.parametrize("text", ["a" * 30 + "b", "a" * 5000 + "b"])
def test_a_pattern_that_gives_up_fails_the_text_alone(tmp_path: Path, text: str) -> None:
    encoder = byte_level_bpe()
    every_way = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    encoder.pre_tokenizer = pre_tokenizers.Sequence([every_way, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer = Tokenizer.load(save(encoder, tmp_path))
    with pytest.raises(InvalidRequest, match="tokenizer gives up on this text"):
        tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode("aab")) == "aab"


# ── processes and threads ────────────────────────────────────────────────────────────────────────────────────────────


def test_threads_share_a_tokenizer(pairs: Mapping[str, Pair]) -> None:
    tokenizer = pairs["byte_level_bpe"].ours
    texts = [text * (1 + index % 9) for index, text in enumerate(TEXTS * 8)]
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected


_FORK = """
import os, sys
from pathlib import Path
from millrace.model_manager.client.tokenizing import Tokenizer
tokenizer = Tokenizer.load(Path(sys.argv[1]))
text = "some text " * 5000
expected = tokenizer.encode(text)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode(text) == expected else 1)
assert os.waitpid(child, 0)[1] == 0
assert not {"torch", "transformers", "numba"} & set(sys.modules)
"""


def test_a_fork_after_encoding_is_silent_and_encodes_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    command = [sys.executable, "-W", "error", "-c", _FORK, str(save(byte_level_bpe(), tmp_path))]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (outcome.returncode, outcome.stderr) == (0, "")

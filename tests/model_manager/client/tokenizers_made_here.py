"""Tokenizers of the kinds that models come with, made on the spot: small, but with every layer of the real ones."""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12,345.67 metres away, isn't it?",
    "def main() -> None:\n    print('hello, world')  # Δοκιμή\n",
    "Die Straße nach Köln; żółć; 東京は日本の首都です。 🙂👩‍👩‍👧",
    '{"name": "Ada", "items": [1, 2, 3]}\t\r\n  two  spaces   and more',
] * 4

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('Unknown role!') }}{% endif %}\n"
    "    {% if message.role == 'assistant' %}\n"
    "<|{{ message['role'] }}|>{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}\n"
    "    {% else %}\n"
    "<|{{ message['role'] }}|>{{ message['content'] | trim }}\n"
    "    {% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]


def byte_level_bpe() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it; no token around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def byte_level_bpe_with_bos() -> Tokenizer:
    """The same, with a BOS before every text."""
    return _with_bos(byte_level_bpe())


def metaspace_bpe_with_byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral have it: spaces are ▁, unknown characters become bytes, a BOS before every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = _metaspace_decoder()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=_SPECIAL + _byte_tokens(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS[:2], trainer)
    return _with_bos(_with_plain_bytes(tokenizer))


def unigram_with_metaspace() -> Tokenizer:
    """As T5 and XLM-R have it, with their EOS after every text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=_SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT has it; its decoded text is cleaned of spaces before punctuation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=_SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind
    for kind in (
        byte_level_bpe,
        byte_level_bpe_with_bos,
        metaspace_bpe_with_byte_fallback,
        unigram_with_metaspace,
        word_piece,
    )
}


def save(tokenizer: Tokenizer, folder: Path, **config: object) -> Path:
    """tokenizer.json and tokenizer_config.json with a chat template; `config` replaces settings, None drops them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": True,
    } | config
    kept = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept), encoding="utf-8")
    return folder


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _metaspace_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )


def _byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _with_plain_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer takes the byte tokens as added ones only; a model that falls back to them has them as plain ones."""
    description = json.loads(tokenizer.to_str())
    plain = set(_byte_tokens())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] not in plain]
    return Tokenizer.from_str(json.dumps(description))


def added(content: str, **flags: bool) -> dict[str, object]:
    """An added token as tokenizer_config.json writes it."""
    token = AddedToken(content, **flags)
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return {"content": content} | {name: getattr(token, name) for name in names}

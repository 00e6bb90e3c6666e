"""The tokenizer: byte-level BPE trained on the generated text, digits and spaces single tokens, a chat template.

A space is a token of its own, so that a word has the same tokens after a space and after a quotation mark: fields
copied into JSON stay copies. No post-processor adds `<s>`: the chat template alone does, so it is never doubled.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .data import Conversation, conversations
from .split import Split

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
USER, ASSISTANT, SYSTEM = "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL_TOKENS = (BOS, EOS, PAD, USER, ASSISTANT, SYSTEM)
VOCAB_SIZE = 1536
MAX_LENGTH = 1024
_WORDS = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s"

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|assistant|>' + message['content'] | trim + eos_token -}}
{%- elif message['role'] in ['system', 'user'] -%}
{{- '<|' + message['role'] + '|>' + message['content'] | trim -}}
{%- else -%}
{{- raise_exception('unknown role: ' + message['role']) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""


def _texts(seed: int, count: int) -> Iterator[str]:
    for conversation in islice(conversations(seed, Split.TRAIN), count):
        for turn in conversation.turns:
            yield turn.prompt
            yield turn.answer


def train_tokenizer(seed: int, count: int = 60_000) -> Tokenizer:
    """A tokenizer trained on `count` conversations of the training split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, count), trainer)
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(token)
    assert found is not None, f"{token} is in every tokenizer trained here"
    return found


def encode(tokenizer: Tokenizer, conversation: Conversation) -> tuple[list[int], list[bool]]:
    """The token ids of a conversation, as the chat template lays them out, and which of them are answers.

    An answer is what the model has to say: the assistant's tokens and the `</s>` after them.
    """
    special = {token: special_id(tokenizer, token) for token in SPECIAL_TOKENS}
    ids, is_answer = [special[BOS]], [False]

    def add(tokens: list[int], answer: bool) -> None:
        ids.extend(tokens)
        is_answer.extend([answer] * len(tokens))

    if conversation.system is not None:
        add([special[SYSTEM], *tokenizer.encode(conversation.system).ids], False)
    for turn in conversation.turns:
        add([special[USER], *tokenizer.encode(turn.prompt).ids, special[ASSISTANT]], False)
        add([*tokenizer.encode(turn.answer).ids, special[EOS]], True)
    return ids, is_answer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

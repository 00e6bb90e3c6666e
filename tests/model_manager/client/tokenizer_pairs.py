"""A folder's tokenizer as we load it beside the same one as transformers does, and conversations for both."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from millrace.model_manager.client.tokenizing import Tokenizer

CHAT = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "Hi <|user|> 1 < 2 & 'quotes' </s>"},
    {"role": "assistant", "content": "Hello! "},
    {"role": "user", "content": "東京?"},
]
USER = [{"role": "user", "content": "Hi"}]


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins."""
    return tokenizer.encode(tokenizer.chat_text(messages), add_special_tokens=False)


class Pair:
    """One folder, loaded by both."""

    def __init__(self, folder: Path) -> None:
        self.ours = Tokenizer.load(folder)
        self.theirs: Any = AutoTokenizer.from_pretrained(folder)

    def agree_on(self, text: str) -> None:
        for special in (True, False):
            ids = self.ours.encode(text, add_special_tokens=special)
            assert ids == self.theirs(text, add_special_tokens=special)["input_ids"]
            for skip in (True, False):
                assert self.ours.decode(ids, skip) == self.theirs.decode(ids, skip_special_tokens=skip)

    def agree_on_chat(self, messages: list[dict[str, str]]) -> None:
        expected = self.theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert encode_chat(self.ours, messages) == expected

"""A vocabulary of letters for the runner whose logits are a function of the history, so that it takes constraints."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from millrace.model_manager.grammars.compiling import GrammarCompiler
from tests.model_manager.engine.history_runner import EOS, VOCAB_SIZE

PIECES = ["</s>", *"abcdefghijklmnop", "ab", "bc", "abc", "de", "fg", "aa"]
"""One token of the logits has no text: the vocabulary is padded."""


@cache
def grammars(folder: Path) -> GrammarCompiler:
    """Over the vocabulary, whose tokenizer is written into the folder."""
    merges = [("a", "b"), ("b", "c"), ("a", "bc"), ("d", "e"), ("f", "g"), ("a", "a")]
    tokenizer = Tokenizer(models.BPE(vocab={piece: token for token, piece in enumerate(PIECES)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(PIECES[EOS], normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return GrammarCompiler(folder, VOCAB_SIZE, [EOS])


def text(token_ids: list[int]) -> str:
    """The text of output tokens without the ending token."""
    return "".join(PIECES[token] for token in token_ids if token != EOS)

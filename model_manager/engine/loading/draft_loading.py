"""Loads a model and, if the settings want one, the smaller model that guesses for it, so that both fit.

Knows folders and settings; not how either is computed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from ...wire.config import ModelConfig
from ...wire.errors import ConfigError
from ..interface import ModelRunner
from .model_loader import LoadedModel, load_model, memory_of


def load_with_draft(config: ModelConfig, folder: Path) -> tuple[LoadedModel, ModelRunner | None]:
    """The model in `folder`, and the runner of `config.draft_model` (a folder) over as many blocks.

    Raises what load_model raises, and ConfigError unless both have the same vocabulary.
    """
    if config.draft_model is None:
        return load_model(config, folder), None
    draft_folder = Path(config.draft_model)
    own = msgspec.structs.replace(
        config, model=config.draft_model, max_model_len=None, max_loras=0, speculation="off", draft_model=None
    )
    _check_tokens(config, folder, draft_folder)
    loaded = load_model(config, folder, beside=memory_of(own, draft_folder))
    runner = load_model(own, draft_folder, num_blocks=loaded.info.num_blocks).runner
    if runner.vocab_size != loaded.info.vocab_size:
        raise _other_vocabulary(config, f"{runner.vocab_size} tokens, and {config.model} has {loaded.info.vocab_size}")
    return loaded, runner


def _check_tokens(config: ModelConfig, folder: Path, draft_folder: Path) -> None:
    """Raise ConfigError unless both tokenizers, if there are two, are equal: a guess is a token id."""
    paths = [each / "tokenizer.json" for each in (folder, draft_folder)]
    if all(path.is_file() for path in paths):
        ours, drafts = (Tokenizer.from_file(str(path)).get_vocab() for path in paths)
        if ours != drafts:
            differing = len(ours.items() ^ drafts.items())
            raise _other_vocabulary(config, f"{differing} token ids that mean something else than in {config.model}")


def _other_vocabulary(config: ModelConfig, difference: str) -> ConfigError:
    return ConfigError(f"draft_model={config.draft_model!r}: has {difference}; takes a model of the same vocabulary")

"""A tiny model with random weights whose tokens are bytes and a few words, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.model_manager.engine.scheduling.stop_text_cases import SPECIAL, tokenizer_of

_LARGE = 0.5
"""Deviation of weights with which logits are far apart, so that no rounding decides."""


def write_byte_level(folder: Path) -> Path:
    """The folder of it."""
    tokenizer = Tokenizer.from_str(tokenizer_of("byte-level").to_str())
    wrapper: Any = PreTrainedTokenizerFast
    wrapper(tokenizer_object=tokenizer, eos_token=SPECIAL).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.token_to_id(SPECIAL),
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, _LARGE)
    model.save_pretrained(folder)
    return folder

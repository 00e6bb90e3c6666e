"""What an engine would say of its model."""

from __future__ import annotations

from typing import Any

from millrace.model_manager.wire.status import ModelInfo


def model_info(**fields: Any) -> ModelInfo:
    """A small model on a CPU, but for the fields that are given."""
    texts = {"name": "small", "folder": "/", "architecture": "small", "dtype": "float32", "device": "cpu"}
    sizes = {"vocab_size": 64, "max_model_len": 128, "max_num_seqs": 4, "num_blocks": 8, "block_size": 16}
    return ModelInfo(**{**texts, **sizes, "eos_token_ids": [], "load_seconds": 0.0, **fields})

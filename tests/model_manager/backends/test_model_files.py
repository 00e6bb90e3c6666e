"""What back ends read of a model's folder."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.backends.model_files import longest
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "fields", "found"),
    [
        (None, {"max_position_embeddings": 1024}, 1024),
        (None, {}, 2048),
        (1024, {"max_position_embeddings": 1024}, 1024),
        (8, {"max_position_embeddings": 1024}, 8),
        (100_000, {}, 100_000),
    ],
)
def test_the_longest_context_is_the_setting_or_the_models(setting: Any, fields: dict[str, Any], found: int) -> None:
    assert longest(ModelConfig(backend="openvino", max_model_len=setting), fields) == found


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    config = ModelConfig(backend="ctranslate2", max_model_len=100_000)
    with pytest.raises(ConfigError, match=r"^max_model_len=100000: this model takes at most 1024$"):
        longest(config, {"max_position_embeddings": 1024})

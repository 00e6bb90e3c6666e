"""The models that are served, what the documentation says of them, and the sentence that refuses the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import LlamaConfig, PreTrainedConfig, ViTConfig

from millrace.model_manager.engine.loading.architectures import (
    TESTED,
    feed_forward_size,
    longest_context,
    served_architecture,
    text_part,
)
from millrace.model_manager.engine.loading.checkpoint import read_checkpoint
from millrace.model_manager.wire.errors import ConfigError, ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.tested_models import MODELS, TABLE_FILE, ModelCase, with_table


def _named(architecture: str, **fields: Any) -> PreTrainedConfig:
    found = getattr(transformers, architecture)
    config: PreTrainedConfig = found.config_class(architectures=[architecture], **fields)
    return config


def test_the_table_in_the_documentation_is_what_the_tests_make() -> None:
    page = TABLE_FILE.read_text()
    assert page == with_table(page), "run python -m tests.model_manager.engine.tested_models"


def test_tested_is_what_the_tests_test() -> None:
    assert list(TESTED) == sorted({case.architecture for case in MODELS})


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.make.__name__)
def test_what_is_tested_is_served_without_a_warning(case: ModelCase, caplog: pytest.LogCaptureFixture) -> None:
    config = case.make()
    config.architectures = [case.architecture]
    found = served_architecture(text_part(config) or config)
    assert found == {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}.get(case.architecture, case.architecture)
    assert caplog.records == []


def test_an_untested_architecture_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert served_architecture(_named("HeliumForCausalLM")) == "HeliumForCausalLM"
    assert "HeliumForCausalLM is not among the tested architectures" in caplog.text


@pytest.mark.parametrize(
    ("architecture", "fields", "reason"),
    [
        ("MambaForCausalLM", {}, "running state"),
        ("JambaForCausalLM", {}, "running state"),
        ("Qwen3NextForCausalLM", {}, "running state"),
        ("T5ForConditionalGeneration", {}, "encoder-decoder"),
        ("BartForCausalLM", {}, "encoder-decoder"),
        ("Llama4ForCausalLM", {}, "layers of type chunked_attention"),
        ("DeepseekV32ForCausalLM", {}, "layers of type indexed_attention"),
        ("Qwen2VLForConditionalGeneration", {}, "no decoder-only language model of that name"),
        ("FalconForCausalLM", {"alibi": True}, "alibi"),
        ("GPTJForCausalLM", {}, "code of its own"),
        ("BloomForCausalLM", {}, "code of its own"),
        ("MptForCausalLM", {}, "code of its own"),
        ("LlamaForSequenceClassification", {}, "no decoder-only language model of that name"),
    ],
)
def test_what_cannot_be_served_right_is_refused_by_name(
    tmp_path: Path, architecture: str, fields: dict[str, Any], reason: str
) -> None:
    """It is refused by config.json alone: the folder has no weights."""
    _named(architecture, **fields).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=f"architecture {architecture} is not served: .*{reason}") as raised:
        read_checkpoint(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_config_without_an_architecture_is_what_transformers_makes_of_its_type() -> None:
    assert served_architecture(LlamaConfig()) == "LlamaForCausalLM"


def test_a_config_without_an_architecture_whose_type_is_no_language_model_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match=r"names no architecture, .* model_type 'vit': put its class"):
        served_architecture(ViTConfig())


@pytest.mark.parametrize("architectures", [None, ["MambaForCausalLM"]])
def test_a_mamba_whose_config_transformers_does_not_read_is_refused_for_what_it_is(
    tmp_path: Path, architectures: list[str] | None
) -> None:
    config = {"model_type": "mamba", "layer_types": ["mamba"] * 2, "architectures": architectures}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnsupported, match="architecture MambaForCausalLM is not served: it keeps a running state"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "fields", "named"),
    [
        ("LlamaForCausalLM", {"is_causal": False}, "is_causal=false"),
        ("Qwen2ForCausalLM", {"is_causal": False}, "is_causal=false"),
        ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=true"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=true"),
    ],
)
def test_attention_that_sees_what_comes_is_refused_by_its_field(
    tmp_path: Path, architecture: str, fields: dict[str, Any], named: str
) -> None:
    """It is refused by config.json alone: the folder has no weights."""
    _named(architecture, **fields).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=f"{architecture} is not served: .* sees later tokens too .{named}"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("fields", [{"is_causal": True}, {"use_bidirectional_attention": True}])
def test_a_field_that_its_code_does_not_read_or_that_says_what_is_so_anyway_is_taken(fields: dict[str, bool]) -> None:
    assert served_architecture(_named("LlamaForCausalLM", **fields)) == "LlamaForCausalLM"


def test_a_model_is_as_long_as_its_positions_unless_a_shorter_length_is_asked_for() -> None:
    config = LlamaConfig(max_position_embeddings=100)
    assert longest_context(config, None) == 100
    assert longest_context(config, 60) == 60
    with pytest.raises(ConfigError, match=r"max_model_len=101: this model takes at most 100$"):
        longest_context(config, 101)


@pytest.mark.parametrize("make", [tested_models.gpt2, random_checkpoints.opt, tested_models.falcon_multi_query])
def test_positions_are_found_by_whatever_name(make: Callable[[], PreTrainedConfig]) -> None:
    assert longest_context(make(), None) == random_checkpoints.POSITIONS


def test_longrope_is_served_up_to_its_original_length(caplog: pytest.LogCaptureFixture) -> None:
    config = tested_models.phi3_longrope()
    assert longest_context(config, None) == random_checkpoints.POSITIONS
    assert "max_model_len is 256, not 2048: rope type longrope" in caplog.text
    with pytest.raises(ConfigError, match="at most 256: rope type longrope makes longer answers depend"):
        longest_context(config, 257)


def test_dynamic_rope_is_served_up_to_its_original_length() -> None:
    assert longest_context(tested_models.llama_dynamic_rope(), None) == random_checkpoints.POSITIONS


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (random_checkpoints.llama_gqa, 96),
        (random_checkpoints.opt, 96),
        (tested_models.gpt2, 4 * 64),
        (tested_models.mixtral, 2 * 96),
        (tested_models.deepseek_v3, 96),
    ],
)
def test_the_width_of_feed_forward_layers_is_found_by_whatever_name(
    make: Callable[[], PreTrainedConfig], wanted: int
) -> None:
    assert feed_forward_size(make()) == wanted

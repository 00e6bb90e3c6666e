"""Hostile values in a config.json: each is one sentence that names the file, or is served."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.engine.loading.checkpoint import read_checkpoint
from millrace.model_manager.engine.loading.compiled_loader import compiled_plan
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.loading.placement import Placement
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import MillraceError, ModelCorrupt
from tests.model_manager.engine import random_checkpoints

_MAKE = {"qwen2": random_checkpoints.qwen2, "opt": random_checkpoints.opt}
_VALUES = st.sampled_from(
    [
        0,
        -1,
        3,
        7,
        2**40,
        10**30,
        1.5,
        1e400,
        "4",
        "",
        True,
        None,
        [],
        [0],
        {},
        {"a": 1},
        {"rope_type": "linear", "rope_theta": "a", "factor": None},
    ]
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {name: tmp_path_factory.mktemp(name) for name in _MAKE}
    for name, make in _MAKE.items():
        random_checkpoints.write(found[name], make())
    return found


def _plan(folder: Path, fields: dict[str, Any], **changes: Any) -> None:
    """Everything that is made of a config before weights are read."""
    (folder / "config.json").write_text(json.dumps(fields | changes))
    try:
        placement = Placement.choose(ModelConfig(model="small"), read_checkpoint(folder))
        placement.check_weights()
        compiled_plan(placement)
    finally:
        (folder / "config.json").write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("name", "field", "value", "takes"),
    [
        ("qwen2", "num_key_value_heads", 0, "an integer from 1 to 1048576, got 0"),
        ("qwen2", "num_key_value_heads", 3, "a divisor of the 4 attention heads, got 3"),
        ("qwen2", "num_attention_heads", 0, "an integer from 1 to 1048576, got 0"),
        ("qwen2", "hidden_size", "64", 'an integer from 1 to 1048576, got "64"'),
        ("qwen2", "vocab_size", True, "an integer from 1 to 16777216, got true"),
        ("qwen2", "max_position_embeddings", 10**30, f"an integer from 1 to 134217728, got 1{'0' * 30}"),
        ("opt", "num_hidden_layers", 10**9, "an integer from 1 to 10000, got 1000000000"),
        ("opt", "num_attention_heads", 7, "a divisor of the hidden size, 64, got 7"),
        ("qwen2", "sliding_window", [], "an integer or null, got []"),
        ("qwen2", "architectures", 7, "a list of class names, got 7"),
        ("opt", "hidden_size", -64, "an integer from 1 to 1048576, got -64"),
    ],
)
def test_an_impossible_size_is_named_with_its_file_and_what_it_takes(
    folders: dict[str, Path], name: str, field: str, value: object, takes: str
) -> None:
    folder = folders[name]
    fields = json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelCorrupt) as raised:
        _plan(folder, fields, **{field: value})
    assert str(raised.value) == f"{folder / 'config.json'}: {field}: takes {takes}"


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        (
            "opt",
            {"num_hidden_layers": 1500},
            "num_hidden_layers and hidden_size describe 6,144,000 parameters or more",
        ),
        (
            "opt",
            {"hidden_size": 64_000},
            "num_hidden_layers and hidden_size describe 12,288,000,000 parameters or more",
        ),
        ("opt", {"vocab_size": 2**24}, "config.json describes 1,073,"),
        ("opt", {"ffn_dim": 2**20}, "describes 405,879,936 parameters"),
    ],
)
def test_a_config_of_another_models_size_is_refused_before_its_memory_is_taken(
    folders: dict[str, Path], name: str, changes: dict[str, Any], says: str
) -> None:
    folder = folders[name]
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | changes))
    try:
        with pytest.raises(ModelCorrupt, match=re.escape(says)):
            load_model(ModelConfig(model="small"), folder)
    finally:
        (folder / "config.json").write_text(json.dumps(fields))


def test_a_vocabulary_that_is_wider_than_the_model_is_no_other_models(tmp_path: Path) -> None:
    """OPT embeds in `word_embed_proj_dim` numbers, and projects them to `hidden_size`."""
    config = transformers.OPTConfig(
        vocab_size=5000,
        hidden_size=64,
        word_embed_proj_dim=8,
        num_hidden_layers=1,
        ffn_dim=96,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    random_checkpoints.write(tmp_path, config)
    assert load_model(ModelConfig(model="small"), tmp_path).info.vocab_size == 5000


@given(data=st.data())
@pytest.mark.parametrize("name", _MAKE)
def test_any_value_of_any_field_is_refused_by_an_error_of_ours_or_served(
    folders: dict[str, Path], name: str, data: st.DataObject
) -> None:
    folder = folders[name]
    fields = json.loads((folder / "config.json").read_text())
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), _VALUES, min_size=1, max_size=2))
    with contextlib.suppress(MillraceError):
        _plan(folder, fields, **changes)

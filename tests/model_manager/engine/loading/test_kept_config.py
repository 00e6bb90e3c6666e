"""A config that was read by transformers and kept says what transformers' config says, and is read anew if in doubt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from millrace.model_manager.engine.cpu.decoder_plan import DecoderPlan, plan_decoder
from millrace.model_manager.engine.loading import surroundings
from millrace.model_manager.engine.loading.checkpoint import Checkpoint, read_checkpoint
from millrace.model_manager.engine.loading.kept_config import KeptConfig, PlainConfig
from millrace.model_manager.engine.loading.placement import Placement
from millrace.model_manager.engine.loading.ranks import check_divisible
from millrace.model_manager.wire.errors import ModelCorrupt, ModelNotFound
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.loading.other_start import config_of, loaded, logits_of

PLANNED = [case.make for case in tested_models.MODELS if plan_decoder(case.architecture, case.make()) is not None]


def written(folder: Path, make: Callable[[], Any] = random_checkpoints.qwen2) -> Path:
    random_checkpoints.write(folder, make())
    return folder


def keep(checkpoint: Checkpoint) -> None:
    checkpoint.kept.keep(checkpoint.architecture, checkpoint.config, plan_of(checkpoint))


def kept_and_read_again(folder: Path) -> tuple[Checkpoint, Checkpoint]:
    """The checkpoint as transformers reads it, and as it is read once its config is kept."""
    first = read_checkpoint(folder)
    keep(first)
    second = read_checkpoint(folder)
    assert isinstance(second.config, PlainConfig)
    return first, second


def plan_of(checkpoint: Checkpoint) -> DecoderPlan:
    plan = plan_decoder(checkpoint.architecture, checkpoint.config)
    assert plan is not None
    return plan


def shown(plan: DecoderPlan) -> tuple[str, Any]:
    """All of a plan, as text, since some of its parts have no equality, and the angles of its rope in full."""
    return repr(plan), plan.rope and (plan.rope.inverse_frequencies.tolist(), plan.rope.scale)


@pytest.mark.parametrize("make", PLANNED, ids=lambda make: make.__name__)
def test_a_model_is_planned_and_placed_the_same(tmp_path: Path, make: Callable[[], Any]) -> None:
    first, second = kept_and_read_again(written(tmp_path, make))
    assert shown(plan_of(second)) == shown(plan_of(first))
    assert replace(second, config=None, kept=None) == replace(first, config=None, kept=None)  # type: ignore[arg-type]
    layout = plan_of(first).layout
    one, other = (Placement.choose(config_of(), checkpoint) for checkpoint in (first, second))
    assert (other.weight_bytes, other.max_model_len) == (one.weight_bytes, one.max_model_len)
    assert other._activation_bytes(layout) == one._activation_bytes(layout)


def test_a_load_after_a_checked_one_is_of_the_kept_config_and_answers_the_same(tmp_path: Path) -> None:
    first = logits_of(loaded(written(tmp_path)))
    assert isinstance(read_checkpoint(tmp_path).config, PlainConfig)
    assert torch.equal(logits_of(loaded(tmp_path)), first)


def test_settings_that_need_transformers_code_get_its_config(tmp_path: Path) -> None:
    compiled = logits_of(loaded(written(tmp_path)))
    assert isinstance(read_checkpoint(tmp_path).config, PlainConfig)
    assert torch.allclose(logits_of(loaded(tmp_path, max_loras=1)), compiled, atol=1e-4)


def test_a_model_that_was_kept_is_divided_among_processes(tmp_path: Path) -> None:
    _, second = kept_and_read_again(written(tmp_path))
    check_divisible(second.transformers_config, config_of(tensor_parallel=2), is_quantized=False)


def with_fields(folder: Path, **fields: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def test_a_config_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    first = read_checkpoint(written(tmp_path))
    before = (tmp_path / "config.json").read_bytes()
    with_fields(tmp_path, rms_norm_eps=0.5)
    keep(first)
    assert not isinstance(read_checkpoint(tmp_path).config, PlainConfig)
    (tmp_path / "config.json").write_bytes(before)
    assert not isinstance(read_checkpoint(tmp_path).config, PlainConfig)


@pytest.mark.parametrize(
    "fields", [{"configuration_files": ["config.4.0.0.json"]}, {"attribute_map": {"rms_norm_eps": "foo"}, "foo": 0.5}]
)
def test_a_config_that_says_it_elsewhere_is_not_kept(tmp_path: Path, fields: dict[str, Any]) -> None:
    written(tmp_path)
    (tmp_path / "config.4.0.0.json").write_bytes((tmp_path / "config.json").read_bytes())
    keep(read_checkpoint(with_fields(tmp_path, **fields)))
    assert not isinstance(read_checkpoint(tmp_path).config, PlainConfig)


@pytest.mark.parametrize("theirs", [5, "x", [[1.0], 2.0]])
def test_a_models_own_field_of_that_name_says_nothing(tmp_path: Path, theirs: object) -> None:
    plain = shown(plan_of(read_checkpoint(written(tmp_path))))
    first, second = kept_and_read_again(with_fields(tmp_path, computed_rope=theirs))
    assert shown(plan_of(first)) == shown(plan_of(second)) == plain


def test_a_config_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    kept_and_read_again(written(tmp_path))
    with pytest.raises(ModelCorrupt, match="num_key_value_heads"):
        read_checkpoint(with_fields(tmp_path, num_key_value_heads=3))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelNotFound):
        read_checkpoint(tmp_path)


def test_what_other_code_kept_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_and_read_again(written(tmp_path))
    monkeypatch.setattr(surroundings, "engine_code", lambda: "other")
    assert KeptConfig(tmp_path).read() is None


def test_another_version_of_a_library_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings.hash_of_code()
    monkeypatch.setattr(surroundings, "version", lambda name: "other" if name == "transformers" else version(name))
    assert surroundings.hash_of_code() != before


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (written(tmp_path) / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("/proc/self/mem")
    with pytest.raises(ModelCorrupt, match=r"config.json is not readable"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:100], lambda whole: whole.replace(b'"hidden_size": 6', b'"hidden_size": 7')]
)
def test_a_damaged_file_is_written_again(tmp_path: Path, kept_in: Path, damage: Callable[[bytes], bytes]) -> None:
    kept_and_read_again(written(tmp_path))
    (file,) = (kept_in / "configs").iterdir()
    damaged = damage(file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    assert not isinstance(read_checkpoint(tmp_path).config, PlainConfig)
    kept_and_read_again(tmp_path)

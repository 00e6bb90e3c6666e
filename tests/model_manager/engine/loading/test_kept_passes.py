"""A check that was passed is kept for that checkpoint, code and kind of load; a refusal never is."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace.model_manager.engine.loading import plan_check, surroundings, transformers_loader
from millrace.model_manager.engine.loading.checkpoint import read_checkpoint
from millrace.model_manager.engine.loading.kept_passes import KeptPass
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.loading.placement import Placement
from millrace.model_manager.engine.loading.refusing import not_served
from millrace.model_manager.store import kept_files
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.loading.other_start import config_of, in_two_processes, keep_often, pass_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    return tmp_path


class _Counted:
    """A check that is counted."""

    def __init__(self, module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._check = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.count += 1
        return self._check(*arguments, **options)


@pytest.mark.parametrize("max_loras", [0, 1])
def test_a_second_load_does_not_check_again(folder: Path, monkeypatch: pytest.MonkeyPatch, max_loras: int) -> None:
    """It holds for a compiled model, and for one that is not compiled."""
    plan = _Counted(plan_check, "disagreement", monkeypatch)
    masks = _Counted(transformers_loader, "check_windows", monkeypatch)
    answers = _Counted(transformers_loader, "check_against_own_attention", monkeypatch)
    for _ in range(2):
        load_model(config_of(max_loras=max_loras), folder)
    runs_compiled = plan.count == 1
    assert (plan.count, masks.count, answers.count) == ((1, 0, 0) if runs_compiled else (0, 1, 1))
    assert not (max_loras and runs_compiled)


def _other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 0 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    os.utime(folder / "model.safetensors", ns=(1, 1))


def _other_config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 1e-5}))


@pytest.mark.parametrize("change", [_other_weights, _other_config])
def test_another_checkpoint_in_the_same_folder_is_checked(folder: Path, change: Any) -> None:
    kept = pass_of(folder)
    kept.keep()
    assert pass_of(folder).is_kept()
    change(folder)
    assert not pass_of(folder).is_kept()


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"kv_cache_dtype": "int8"},
        {"max_model_len": 100},
        {"block_size": 32},
        {"max_loras": 1},
    ],
)
def test_what_is_computed_otherwise_is_checked(folder: Path, settings: dict[str, Any]) -> None:
    pass_of(folder, dtype="float32").keep()
    assert not pass_of(folder, **{"dtype": "float32"} | settings).is_kept()


def test_other_code_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_of(folder).keep()
    assert pass_of(folder).is_kept()
    monkeypatch.setattr(surroundings, "engine_code", lambda: "other")
    assert not pass_of(folder).is_kept()


def test_a_refusal_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch, kept_in: Path) -> None:
    def refuse(model: Any, *_: Any, **__: Any) -> None:
        raise not_served(model, "today is no day for it")

    with monkeypatch.context() as today:
        today.setattr(transformers_loader, "check_windows", refuse)
        with pytest.raises(ModelUnsupported, match="no day for it"):
            load_model(config_of(max_loras=1), folder)
    assert not list(kept_in.rglob("checks/*"))
    load_model(config_of(max_loras=1), folder)
    assert len(list(kept_in.rglob("checks/*"))) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 9])
def test_a_damaged_pass_is_none(folder: Path, kept_in: Path, content: bytes) -> None:
    pass_of(folder).keep()
    (file,) = kept_in.rglob("checks/*")
    file.write_bytes(content)
    assert not pass_of(folder).is_kept()
    pass_of(folder).keep()
    assert pass_of(folder).is_kept()


def test_a_folder_that_cannot_be_written_only_costs_another_check(
    folder: Path, kept_in: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (kept_in / "checks").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        load_model(config_of(), folder)
    assert "the checks of this model run again at its next start" in caplog.text


def test_the_oldest_passes_are_forgotten(folder: Path, kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "_MOST_KEPT", 3)
    for age in range(5):
        pass_of(folder, max_model_len=100 + age).keep()
        for file in kept_in.rglob("checks/*"):
            os.utime(file, ns=(file.stat().st_mtime_ns - 10**9,) * 2)
    assert len(list(kept_in.rglob("checks/*"))) == 3
    assert [pass_of(folder, max_model_len=100 + age).is_kept() for age in range(5)] == [False, False, True, True, True]


def test_starts_at_the_same_time_do_not_disturb_each_other(folder: Path, kept_in: Path) -> None:
    in_two_processes(keep_often, folder)
    assert pass_of(folder).is_kept()
    assert len(list((kept_in / "checks").iterdir())) == 1


def test_ranks_come_to_the_same_answer(folder: Path) -> None:
    """One that has found the pass checks with one that has not."""
    pass_of(folder).keep()
    placement = Placement.choose(config_of(), read_checkpoint(folder))
    kept = KeptPass(placement, "compiled")
    assert kept.is_kept()
    rank: Any = type("Rank", (), {"least": lambda _self, number: min(number, 0)})()
    kept._rank = rank
    assert not kept.is_kept()


def test_what_is_kept_says_what_it_is_of(folder: Path, kept_in: Path) -> None:
    load_model(config_of(), folder)
    (file,) = kept_in.rglob("checks/*")
    content = json.loads(file.read_bytes())
    assert content["dtype"] == "torch.float32"
    assert content["weights"][0][0] == "model.safetensors"
    assert content["torch"] == str(torch.__version__)


def test_another_model_is_another_pass(tmp_path: Path) -> None:
    for name, make in (("one", tested_models.olmo), ("other", tested_models.olmo2)):
        (tmp_path / name).mkdir()
        random_checkpoints.write(tmp_path / name, make())
    pass_of(tmp_path / "one").keep()
    assert not pass_of(tmp_path / "other").is_kept()

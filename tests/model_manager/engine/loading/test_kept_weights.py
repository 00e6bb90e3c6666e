"""A second load maps the packed weights of the first and answers bit for bit as it does; what is not right is packed
again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner
from millrace.model_manager.engine.cpu.matrix_ops import LANES, Format
from millrace.model_manager.engine.cpu.parameter_reader import StoredParameters
from millrace.model_manager.engine.cpu.units import unit_of
from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.loading import kept_weights, plan_check, surroundings
from millrace.model_manager.wire.errors import ModelCorrupt
from tests.model_manager.engine import random_checkpoints, tested_models
from tests.model_manager.engine.loading.other_start import in_two_processes, load_often, loaded, logits_of, packed_files

pytestmark = pytest.mark.skipif(unit_of(Format.FLOAT32, LANES) is None, reason="the processor lacks AVX2")

_FORMATS: tuple[dict[str, Any], ...] = ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"})
_CASES = (
    (random_checkpoints.llama_gqa, {"dtype": "float32"}),
    (random_checkpoints.qwen2, {"quantization": "int8"}),
    (random_checkpoints.opt, {"dtype": "bfloat16"}),
    (tested_models.gemma, {"quantization": "int8"}),
    (tested_models.starcoder2, {"dtype": "float32"}),
)


@pytest.fixture(autouse=True)
def _small_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not checked, which has tests of its own and takes longer than a load."""
    monkeypatch.setattr(kept_weights, "_LEAST_BYTES", 0)
    monkeypatch.setattr(plan_check, "disagreement", lambda _placement: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    return tmp_path


class _Reads:
    """Counts the reads of a checkpoint's parameters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        take = StoredParameters.take

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return take(*arguments)

        monkeypatch.setattr(StoredParameters, "take", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> _Reads:
    return _Reads(monkeypatch)


@pytest.mark.parametrize(("config", "settings"), _CASES)
def test_a_second_load_reads_no_checkpoint_and_answers_bit_for_bit_the_same(
    tmp_path: Path, reads: _Reads, settings: dict[str, Any], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_checkpoints.write(tmp_path, config())
    with monkeypatch.context() as nothing_kept:
        nothing_kept.setattr(kept_weights, "_LEAST_BYTES", 2**40)
        plain = loaded(tmp_path, **settings)
    assert isinstance(plain, CompiledRunner)
    first = loaded(tmp_path, **settings)
    assert reads.count > 0
    reads.count = 0
    second = loaded(tmp_path, **settings)
    assert reads.count == 0
    expected, states = logits_of(plain), torch.randn(3, first.execute(_with_states()).hidden.shape[1])
    for runner in (first, second):
        assert torch.equal(logits_of(runner), expected)
        assert torch.equal(runner.execute(_with_states()).hidden, plain.execute(_with_states()).hidden)
        assert torch.equal(runner.logits(states), plain.logits(states))


def _with_states() -> StepInput:
    step = StepInput.of_first_tokens(9)
    object.__setattr__(step, "hidden_rows", np.arange(9))
    return step


def test_formats_of_one_model_are_kept_beside_each_other(folder: Path, kept_in: Path, reads: _Reads) -> None:
    for settings in _FORMATS:
        loaded(folder, **settings)
    assert len(packed_files(kept_in)) == 3
    reads.count = 0
    for settings in _FORMATS:
        loaded(folder, **settings)
    assert reads.count == 0


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"dtype": "float32", "quantization": "int8"}])
def test_the_size_of_a_file_is_known_before_it_is_written(
    tmp_path: Path, kept_in: Path, settings: dict[str, Any], is_tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large vocabulary, beside which padding counts little."""
    config = random_checkpoints.llama_gqa()
    config.vocab_size, config.tie_word_embeddings = 20_000, is_tied
    asked: list[int] = []
    make_room = kept_weights._make_room

    def noted(size: int, **more: Any) -> bool:
        asked.append(size)
        return make_room(size, **more)

    monkeypatch.setattr(kept_weights, "_make_room", noted)
    random_checkpoints.write(tmp_path, config)
    loaded(tmp_path, **settings)
    (file,) = packed_files(kept_in)
    assert asked == [pytest.approx(file.stat().st_size, rel=0.06)]


def test_what_is_no_file_is_written_over(folder: Path, kept_in: Path, reads: _Reads) -> None:
    loaded(folder)
    (file,) = packed_files(kept_in)
    file.unlink()
    os.mkfifo(file)
    loaded(folder)
    reads.count = 0
    loaded(folder)
    assert reads.count == 0


def test_kept_weights_are_their_users_alone(folder: Path, kept_in: Path) -> None:
    loaded(folder)
    (file,) = packed_files(kept_in)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def _flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 16
    file.write_bytes(content)


def _other_end(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8] + b"whatever")


def _other_index(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        _flipped,
        _other_end,
        _other_index,
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: os.truncate(file, 3),
        lambda file: os.truncate(file, 0),
        lambda file: file.write_bytes(file.read_bytes() + b"more"),
    ],
)
def test_a_damaged_file_is_noticed_and_written_anew(
    folder: Path, kept_in: Path, reads: _Reads, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits_of(loaded(folder))
    (file,) = packed_files(kept_in)
    whole = file.read_bytes()
    damage(file)
    assert torch.equal(logits_of(loaded(folder)), expected)
    assert caplog.text.count("; the weights are packed again") == 1
    assert file.read_bytes() == whole
    reads.count = 0
    loaded(folder)
    assert reads.count == 0


def test_another_checkpoint_of_the_same_name_size_and_time_is_packed_anew(folder: Path, kept_in: Path) -> None:
    """Nothing tells it but the time at which the file was changed, which cannot be set."""
    before = logits_of(loaded(folder))
    file = folder / "model.safetensors"
    status = file.stat()
    weights = {name: tensor * 2 for name, tensor in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after = logits_of(loaded(folder))
    assert not torch.equal(after, before)
    assert torch.equal(logits_of(loaded(folder)), after)
    assert len(packed_files(kept_in)) == 1


def test_other_code_packs_anew(folder: Path, reads: _Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(folder)
    monkeypatch.setattr(surroundings, "engine_code", lambda: "other")
    reads.count = 0
    loaded(folder)
    assert reads.count > 0


def test_a_folder_that_cannot_be_written_costs_one_line(
    folder: Path, kept_in: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (kept_in / "packed").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        logits_of(loaded(folder))
    (line,) = (record for record in caplog.records if record.name == kept_weights.__name__)
    assert "are not kept for the next load" in line.getMessage()


@pytest.mark.parametrize("most", [0, 2**12, 2**16])
def test_a_full_disk_costs_one_line(folder: Path, kept_in: Path, most: int, caplog: pytest.LogCaptureFixture) -> None:
    """No file may be larger, and the packed weights are: small tensors fail when their buffer is full."""
    expected = logits_of(loaded(folder))
    size = packed_files(kept_in)[0].stat().st_size
    shutil.rmtree(kept_in / "packed")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
    try:
        runner = loaded(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert size > 2**16
    assert torch.equal(logits_of(runner), expected)
    assert caplog.text.count("packed weights are not kept for the next load") == 1
    assert not packed_files(kept_in)


def test_what_a_killed_load_left_is_written_over(folder: Path, kept_in: Path) -> None:
    loaded(folder)
    (file,) = packed_files(kept_in)
    whole = file.read_bytes()
    file.rename(file.with_name(f"{file.name}.unfinished")).write_bytes(whole[:5000] * 90)
    loaded(folder)
    assert [each.read_bytes() for each in packed_files(kept_in)] == [whole]


def test_a_load_that_fails_keeps_nothing(folder: Path, kept_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = StoredParameters.take

    def torn(parameters: Any, names: list[str]) -> Any:
        if any("norm.weight" in name and "layers" not in name for name in names):
            raise OSError("the disk is torn")
        return take(parameters, names)

    monkeypatch.setattr(StoredParameters, "take", torn)
    with pytest.raises(ModelCorrupt):
        loaded(folder)
    assert not packed_files(kept_in)


def test_two_loads_at_once_do_not_disturb_each_other(folder: Path, kept_in: Path, reads: _Reads) -> None:
    in_two_processes(load_often, folder)
    loaded(folder)
    assert len(packed_files(kept_in)) == 1
    reads.count = 0
    loaded(folder)
    assert reads.count == 0


def test_small_weights_and_those_of_adapters_are_not_kept(
    folder: Path, kept_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers' modules, which take adapters, have weights of their own."""
    loaded(folder, max_loras=1)
    monkeypatch.undo()
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(kept_in))
    loaded(folder)
    assert not packed_files(kept_in)


def test_files_that_were_not_used_for_longest_make_room(
    folder: Path, kept_in: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded(folder, dtype="float32")
    size = packed_files(kept_in)[0].stat().st_size
    others = [kept_in / "packed" / name for name in ("oldest", "older", "newest")]
    for age, file in enumerate(others):
        file.write_bytes(bytes(size))
        os.utime(file, ns=(age, age))
    _disk(monkeypatch, total=10 * (2 * size + size // 2), free=100 * size)
    loaded(folder, dtype="float32")  # is used: the newest now
    loaded(folder, quantization="int8")
    names = {file.name for file in packed_files(kept_in)}
    assert len(names) == 3
    assert names & {"oldest", "older", "newest"} == {"newest"}
    _disk(monkeypatch, total=size, free=size)
    loaded(folder, dtype="bfloat16")
    assert "are more than they may take of this disk" in caplog.text
    assert {file.name for file in packed_files(kept_in)} == names


def test_what_another_process_is_writing_is_left_to_it(
    folder: Path, kept_in: Path, reads: _Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(folder)
    (file,) = packed_files(kept_in)
    size = file.stat().st_size
    file.unlink()
    _disk(monkeypatch, total=10 * (size + size // 2), free=100 * size)
    for name, is_written in (("other.unfinished", True), (f"{file.name}.unfinished", True), ("left.unfinished", False)):
        writing = (file.parent / name).open("wb")
        writing.write(bytes(size))
        writing.flush()
        if is_written:
            fcntl.flock(writing, fcntl.LOCK_EX)
        else:
            writing.close()
        loaded(folder)
        assert {each.name for each in packed_files(kept_in)} == ({name} if is_written else {file.name})
        writing.close()
        (file.parent / name).unlink(missing_ok=True)
    assert reads.count > 0


def _disk(monkeypatch: pytest.MonkeyPatch, *, total: int, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(total=total, free=free))

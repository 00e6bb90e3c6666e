"""The GPUs of a machine, and how engines are placed on them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.manager import gpus
from millrace.model_manager.manager.gpus import engine_setups, gpu_memory, visible_gpus
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError

FOUR = ("0", "1", "2", "3")


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """The driver's folder of a machine with three GPUs."""
    for name in ("0000:1a:00.0", "0000:3b:00.0", "0000:5e:00.0"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_all_gpus_of_the_driver_are_visible(drivers: Path) -> None:
    assert visible_gpus({}, drivers) == ("0", "1", "2")


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path / "none", tmp_path) == ()


def test_gpus_are_found_by_their_device_files_where_the_driver_shows_no_more(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path / "none", tmp_path) == ("0", "1")


@pytest.mark.parametrize(
    ("named", "seen"),
    [("2,0", ("2", "0")), ("GPU-8932f937", ("GPU-8932f937",)), ("", ()), ("-1", ()), (" 1 , -1, 2", ("1",))],
)
def test_the_environment_chooses_among_them_as_for_cuda(drivers: Path, named: str, seen: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}, drivers) == seen


def test_by_default_each_gpu_has_an_engine_of_its_own() -> None:
    assert [setup.gpus for setup in engine_setups(ModelConfig(), FOUR, 8)] == [("0",), ("1",), ("2",), ("3",)]


def test_tensor_parallel_engines_take_several_each() -> None:
    assert [setup.gpus for setup in engine_setups(ModelConfig(tensor_parallel=2), FOUR, 8)] == [("0", "1"), ("2", "3")]
    assert [setup.gpus for setup in engine_setups(ModelConfig(tensor_parallel=3), FOUR, 8)] == [("0", "1", "2")]


def test_fewer_engines_may_be_asked_for_and_no_more_than_there_are_gpus_for() -> None:
    assert [setup.gpus for setup in engine_setups(ModelConfig(num_engines=1), FOUR, 8)] == [("0",)]
    with pytest.raises(ConfigError, match="num_engines=3 with tensor_parallel=2 takes 6 GPUs: this machine has 4"):
        engine_setups(ModelConfig(num_engines=3, tensor_parallel=2), FOUR, 8)
    with pytest.raises(ConfigError, match="num_engines=1 with tensor_parallel=8"):
        engine_setups(ModelConfig(tensor_parallel=8), FOUR, 8)


@pytest.mark.parametrize("config", [ModelConfig(device="cpu"), ModelConfig(backend="fake")])
def test_on_a_cpu_there_is_one_engine_which_computes_on_all_of_its_cores(config: ModelConfig) -> None:
    (setup,) = engine_setups(config, FOUR, 8)
    assert (setup.config, setup.gpus) == (msgspec.structs.replace(config, num_threads=8), ())


def test_several_on_a_cpu_divide_its_cores_unless_told_how_many_to_use() -> None:
    shared = engine_setups(ModelConfig(num_engines=3), (), 8)
    assert [setup.config.num_threads for setup in shared] == [2, 2, 2]
    assert engine_setups(ModelConfig(tensor_parallel=2), (), 8)[0].config.num_threads == 4
    assert engine_setups(ModelConfig(num_engines=3, num_threads=5), (), 8)[0].config.num_threads == 5


def test_the_driver_tells_the_memory_of_each_gpu_by_number_or_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aa, 81559'\necho '1, GPU-bb, 24576'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpus, "_DRIVER_WITHIN", 300.0)
    assert gpu_memory(("1", "GPU-aa")) == {"1": 24576 * 2**20, "GPU-aa": 81559 * 2**20}
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_memory(("0",)) == {}
    assert gpu_memory(()) == {}

"""Options that only the engine knows: a wrong name or type is one whole sentence."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from millrace.model_manager.backends.ctranslate2 import _OPTION_DEFAULTS, _option
from millrace.model_manager.backends.ctranslate2 import load as load_ctranslate2
from millrace.model_manager.backends.engine_options import check_names, of_type
from millrace.model_manager.backends.llama_cpp.options import apply_options
from millrace.model_manager.backends.openvino import _device, _set
from millrace.model_manager.backends.vllm import _arguments, _check_device
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from tests.model_manager.store.checkpoints import EMBEDDED

MANY = [f"option_{n}" for n in range(200)]


def told(call: Any, *arguments: Any) -> str:
    with pytest.raises(ConfigError) as found:
        call(*arguments)
    return str(found.value)


def test_a_long_list_of_options_ends_with_a_whole_name_and_how_many_more_there_are() -> None:
    said = told(check_names, {"zzz": 1}, MANY, "vLLM")
    assert said == f"backend_options: unknown option of vLLM 'zzz': takes {', '.join(MANY[:20])} and 180 more"


def test_a_name_that_was_meant_and_one_that_a_setting_decides_are_told() -> None:
    assert told(check_names, {"optoin_7": 1}, MANY, "vLLM").endswith("did you mean option_7?")
    others = told(check_names, {"zzz": 1}, MANY[:3], "vLLM", {"option_1": "dtype"})
    assert others.endswith("takes option_0, option_2")
    decided = told(check_names, {"option_7": 1}, MANY, "vLLM", {"option_7": "dtype"})
    assert decided == (
        "backend_options: option_7=1: the setting dtype decides it: give --dtype instead, in Python"
        " ModelConfig(dtype=…)"
    )


def test_a_value_of_another_type_is_told_what_the_option_takes() -> None:
    assert told(of_type, "inter_threads", "many", 1) == "backend_options: inter_threads='many': takes an integer"
    assert told(of_type, "flash_attention", 1, False) == "backend_options: flash_attention=1: takes true or false"
    assert (of_type("share", 1, 0.5), of_type("name", "x", "")) == (1.0, "x")


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("inter_threads", -1, "1 to 1024"),
        ("inter_threads", 2**40, "1 to 1024"),
        ("inter_threads", 0, "1 to 1024"),
        ("device_index", -1, "0 to 2147483647"),
    ],
)
def test_ctranslate2s_numbers_have_ranges(name: str, value: int, takes: str) -> None:
    assert told(_option, name, value) == f"backend_options: {name}={value}: takes {takes}"
    assert (_option("inter_threads", 2), _option("flash_attention", True)) == (2, True)


def test_llama_cpp_is_given_no_number_that_it_cannot_hold() -> None:
    class Params(SimpleNamespace):
        def __setattr__(self, name: str, value: Any) -> None:
            if value >= 2**31:
                raise OverflowError("value too large to convert to int32_t")
            super().__setattr__(name, value)

    params = Params(n_batch=512, cpuparams=Params(), cpuparams_batch=Params())
    apply_options(None, params, {"n_batch": 64, "poll": 1})
    assert (params.n_batch, params.cpuparams.poll, params.cpuparams_batch.poll) == (64, 1, 1)
    for name in ("n_batch", "poll", "n_threads_batch"):
        said = told(apply_options, None, params, {name: 2**31})
        assert said == f"backend_options: {name}=2147483648: takes a number within 32 bits"


def test_ctranslate2_knows_the_type_of_each_of_its_options() -> None:
    assert tuple(_OPTION_DEFAULTS) == BACKENDS["ctranslate2"].options


def test_openvinos_scheduler_takes_values_of_its_fields_types() -> None:
    class Scheduler(SimpleNamespace):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "interval" and not isinstance(value, int):
                raise TypeError("incompatible function arguments.\nThe following are supported: many")
            if name == "num_kv_blocks" and value < 0:
                raise TypeError("incompatible function arguments.\nThe following are supported: many")
            super().__setattr__(name, value)

    scheduler = Scheduler(num_kv_blocks=0, eviction=object())
    scheduler.__dict__["interval"] = None
    _set(scheduler, "num_kv_blocks", 7)
    _set(scheduler, "interval", 3)
    assert (scheduler.num_kv_blocks, scheduler.interval) == (7, 3)
    assert told(_set, scheduler, "num_kv_blocks", "x") == "backend_options: num_kv_blocks='x': takes an integer"
    assert told(_set, scheduler, "num_kv_blocks", -1) == (
        "backend_options: num_kv_blocks=-1: takes another number: 0 or more, within its bits"
    )
    assert told(_set, scheduler, "eviction", True) == "backend_options: eviction=True: cannot be set from here"
    scheduler.__dict__["interval"] = None
    assert told(_set, scheduler, "interval", "x") == "backend_options: interval='x': takes a value of another type"


def test_a_device_that_the_engine_does_not_have_is_one_sentence() -> None:
    cuda = ModelConfig(backend="vllm", device="cuda")
    assert told(_check_device, cuda, "cpu") == (
        "device='cuda': the vLLM that is installed computes on cpu; `millrace engines install vllm --device cuda`"
        " installs the other build"
    )
    assert "no device of this machine" in told(_check_device, cuda, "")
    _check_device(ModelConfig(backend="vllm"), "cpu")
    _check_device(cuda, "cuda")
    openvino = ModelConfig(backend="openvino", device="cuda")
    assert told(_device, openvino, ["CPU"]).startswith("device='cuda': OpenVINO finds no GPU")
    assert (_device(openvino, ["CPU", "GPU.0"]), _device(ModelConfig(backend="openvino"), ["CPU"])) == ("GPU", "CPU")


def test_vllm_gets_a_kv_cache_of_parts_of_a_gib(tmp_path: Any) -> None:
    for device in ("auto", "cpu"):
        config = ModelConfig.parse({"backend": "vllm", "kv_cache_gib": 0.25, "device": device})
        assert _arguments(config, tmp_path, [])["kv_cache_memory_bytes"] == 2**28


def test_vllm_is_told_on_how_many_gpus_a_model_is_split(tmp_path: Path) -> None:
    for number in (1, 2):
        config = ModelConfig.parse({"backend": "vllm", "tensor_parallel": number})
        assert _arguments(config, tmp_path, [])["tensor_parallel_size"] == number


def test_ctranslate2_is_given_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    class Generator:
        device, compute_type = "cpu", "float32"

        def __init__(self, folder: str, **arguments: Any) -> None:
            assert folder == str(tmp_path)
            asked.append(arguments)

    library = ModuleType("ctranslate2")
    vars(library).update(Generator=Generator, get_supported_compute_types=lambda _device: {"float32"})
    monkeypatch.setitem(sys.modules, "ctranslate2", library)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(EMBEDDED / name, tmp_path / name)
    for name, text in {"model.bin": "", "vocabulary.json": '["a"]', "config.json": "{}"}.items():
        (tmp_path / name).write_text(text)
    options = {"tensor_parallel": True, "device_index": 1, "inter_threads": 2, "flash_attention": True}
    settings = {"backend": "ctranslate2", "max_model_len": 64, "num_threads": 4}
    load_ctranslate2(ModelConfig.parse(settings | {"backend_options": options}), tmp_path)
    assert asked == [{"device": "cpu", "compute_type": "default", "intra_threads": 2, **options}]

"""Settings: unknown and impossible ones are refused by name."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given

from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import EMBEDDED_MODEL, SHARED_SETTINGS, ManagerConfig, ModelConfig, runtime_dir
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.wire.instances import of_type


@given(of_type(ModelConfig))
def test_settings_survive_being_plain_values_and_messages(config: ModelConfig) -> None:
    assert ModelConfig.parse(msgspec.to_builtins(config)) == config
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=ModelConfig) == config


INVALID = [
    ("model", ""),
    ("model", "  "),
    ("model", "a\0b"),
    ("max_model_len", 1),
    ("max_num_seqs", 0),
    ("max_num_seqs", 4097),
    ("max_num_batched_tokens", 63),
    ("block_size", 0),
    ("block_size", 17),
    ("kv_cache_gib", 0),
    ("kv_cache_gib", -1.0),
    ("kv_cache_gib", math.nan),
    ("kv_cache_gib", math.inf),
    ("num_threads", 0),
    ("num_speculative_tokens", 0),
    ("draft_model", "org/small"),
    ("num_speculative_tokens", 17),
    ("num_engines", 0),
    ("tensor_parallel", 0),
    ("max_loras", -1),
    ("max_loras", 1025),
    ("max_lora_rank", 0),
    ("max_lora_rank", 1025),
]
WRONG_TYPE = [
    ("model", 1),
    ("model", None),
    ("revision", 1),
    ("dtype", "int3"),
    ("quantization", "int3"),
    ("kv_cache_dtype", "float32"),
    ("device", "tpu"),
    ("max_num_seqs", "many"),
    ("prefix_caching", "yes"),
    ("pinned", "yes"),
    ("speculation", "sometimes"),
    ("backend", "other"),
    ("backend_options", 3),
    ("backend_python", 3),
]


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_an_impossible_setting_of_a_model_is_refused_by_name(name: str, value: Any) -> None:
    for make in (ModelConfig.parse, lambda fields: ModelConfig(**fields)):
        with pytest.raises(ConfigError, match=rf"^{name}=.*: takes "):
            make({name: value})


@pytest.mark.parametrize(("name", "value"), WRONG_TYPE)
def test_a_setting_of_the_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    for make in (ModelConfig.parse, lambda fields: ModelConfig(**fields)):
        with pytest.raises(ConfigError, match=rf"^{name}=.*: takes "):
            make({name: value})


def test_a_divided_model_takes_no_adapters() -> None:
    with pytest.raises(ConfigError, match="max_loras=1: takes 0 beside tensor_parallel=2"):
        ModelConfig(max_loras=1, tensor_parallel=2)


def test_every_setting_of_a_model_has_a_case_of_an_invalid_value() -> None:
    tested = {name for name, _ in INVALID + WRONG_TYPE}
    assert tested == set(ModelConfig.__struct_fields__)


@pytest.mark.parametrize("kind", [ModelConfig, ManagerConfig])
def test_an_unknown_setting_is_refused_by_name(kind: type[ModelConfig | ManagerConfig]) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting of {kind.__name__} 'max_nun_seqs': "):
        kind.parse({"max_nun_seqs": 1})


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
@pytest.mark.parametrize("name", ManagerConfig.__struct_fields__)
def test_an_impossible_setting_of_the_manager_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        ManagerConfig.parse({name: value})


def test_every_default_is_possible() -> None:
    assert ModelConfig.parse({}) == ModelConfig()
    assert ManagerConfig.parse({}) == ManagerConfig()


def test_capacity_is_not_in_the_key_and_what_changes_answers_is() -> None:
    base = ModelConfig()
    assert base.key == ModelConfig(max_num_seqs=3, kv_cache_gib=1.0, num_threads=2, num_engines=2, block_size=8).key
    others = [
        ModelConfig(model="other"),
        ModelConfig(revision="main"),
        ModelConfig(dtype="float32"),
        ModelConfig(quantization="int8"),
        ModelConfig(kv_cache_dtype="int8"),
        ModelConfig(device="cpu"),
        ModelConfig(max_model_len=64),
        ModelConfig(max_loras=1),
        ModelConfig(backend="fake"),
        ModelConfig(backend="vllm"),
        ModelConfig(backend="vllm", backend_options={"seed": 1}),
        ModelConfig(backend="vllm", backend_python="/other/bin/python"),
    ]
    assert ModelConfig(max_loras=1).key == ModelConfig(max_loras=2).key
    assert base.key == ModelConfig(max_lora_rank=8).key
    assert len({base.key, *(other.key for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("name", ModelConfig.__struct_fields__)
def test_each_setting_is_in_the_key_or_one_that_is_shared(name: str) -> None:
    other: dict[str, Any] = {"model": "m", "revision": "r", "dtype": "float32", "quantization": "int8", "device": "cpu"}
    other |= {"kv_cache_dtype": "int8", "max_model_len": 64, "backend": "fake"}
    other |= {"backend_options": {"seed": 1}, "backend_python": "/other/bin/python"}
    assert (name in other) != (name in SHARED_SETTINGS)
    if name in other:
        beside = {"backend": "vllm"} if name.startswith("backend_") else {}
        assert ModelConfig.parse({**beside, name: other[name]}).key != ModelConfig.parse(beside).key


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_revision_is_taken_where_files_are_fetched_and_refused_where_a_server_has_them(backend: str) -> None:
    settings = {"backend": backend, "revision": "v2"}
    told = {
        "endpoint": "its servers have them: leave it out, or name as model what they call that revision",
        "server": r"command \(--server_command '… --revision v2'\), which vllm, aphrodite, sglang, lmdeploy, tgi take",
    }
    if backend in told:
        with pytest.raises(
            ConfigError, match=f"^revision='v2': the back end {backend} fetches no files, .*{told[backend]}"
        ):
            ModelConfig.parse(settings)
    else:
        assert ModelConfig.parse(settings).revision == "v2"


def test_another_engine_takes_its_own_options_and_fewer_settings() -> None:
    with pytest.raises(ConfigError, match=r"^block_size=32: the back end vllm does not take it"):
        ModelConfig(backend="vllm", block_size=32)
    with pytest.raises(ConfigError, match=r"^backend='vlm': did you mean vllm"):
        ModelConfig(backend="vlm")
    with pytest.raises(
        ConfigError, match=r"^backend_options: seed: millrace's own engines take no such options: name another"
    ):
        ModelConfig(backend_options={"seed": 1})
    with pytest.raises(
        ConfigError, match=r"^backend_python='/usr/bin/python3': the back end torch runs in millrace's own"
    ):
        ModelConfig(backend_python="/usr/bin/python3")


@pytest.mark.parametrize(
    ("model", "start"), [("org/name", "name-"), ("gs://b/folder/", "folder-"), (EMBEDDED_MODEL, f"{EMBEDDED_MODEL}-")]
)
def test_a_key_begins_with_the_models_last_name(model: str, start: str) -> None:
    assert ModelConfig(model=model).key.startswith(start)


@pytest.mark.parametrize("model", ["gs://bucket/model", "/folder/model", "./model"])
def test_a_slash_after_a_folder_makes_no_other_key(model: str) -> None:
    assert ModelConfig(model=f"{model}/").key == ModelConfig(model=model).key


def test_the_runtime_folder_is_the_named_one_or_this_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == tmp_path
    monkeypatch.delenv("MILLRACE_RUNTIME_DIR")
    assert runtime_dir().name.startswith("millrace-")


def test_a_task_that_an_engine_loads_otherwise_for_has_its_options_and_a_users_own_win() -> None:
    vllm = ModelConfig(backend="vllm", backend_options={"seed": 1})
    assert vllm.for_task("generate") == vllm
    assert vllm.for_task("embed").backend_options == {"runner": "pooling", "seed": 1}
    assert vllm.for_task("embed").for_task("embed") == vllm.for_task("embed")
    assert ModelConfig(backend="vllm", backend_options={"runner": "auto"}).for_task("embed").backend_options == {
        "runner": "auto"
    }
    assert ModelConfig().for_task("embed") == ModelConfig()


@pytest.mark.parametrize(
    ("settings", "given", "named", "sentence"),
    [
        (ModelConfig, ["org/name"], {}, "ModelConfig takes its settings by name: write ModelConfig(model='org/name')"),
        (SamplingParams, [8], {}, "SamplingParams takes its settings by name: write SamplingParams(max_tokens=8)"),
        (ModelConfig, [], {"batch_size": 8}, "unknown setting of ModelConfig 'batch_size': did you mean max_num_seqs?"),
        (ManagerConfig, [], {"lingr": 8}, "unknown setting of ManagerConfig 'lingr': did you mean linger?"),
        (SamplingParams, [], {"stopp": "a"}, "unknown setting of SamplingParams 'stopp': did you mean stop?"),
    ],
)
def test_a_constructor_says_which_name_was_meant(
    settings: type, given: list[Any], named: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError) as raised:
        settings(*given, **named)
    assert str(raised.value) == sentence

"""Folders and the embedded model's name, and what a model's folder must hold."""

import json
import re
import sys
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve, resolve_tokenizer
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import ConfigError, ModelCorrupt, ModelNotFound, ModelUnsupported
from tests.model_manager.store.checkpoints import EMBEDDED, header_length, write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "small", shards=2)


def test_the_embedded_model_resolves_by_its_name_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(EMBEDDED_MODEL) == EMBEDDED


def test_a_folder_resolves_absolute_relative_and_under_home(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    for name in (str(checkpoint), "small", "./small", "../" + checkpoint.parent.name + "/small", "~/small"):
        assert resolve(name) == checkpoint


def test_a_folder_wins_over_a_hub_name(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent.parent)
    assert resolve(f"{checkpoint.parent.name}/small") == checkpoint


def test_local_models_need_neither_the_hub_nor_the_cloud_client(checkpoint: Path) -> None:
    loaded = set(sys.modules)
    resolve(str(checkpoint))
    assert not [name for name in set(sys.modules) - loaded if name.startswith(("google", "huggingface_hub"))]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("./smal", "did you mean small?"), (f"{EMBEDDED_MODEL}s", f"did you mean {EMBEDDED_MODEL}?")],
)
def test_a_near_miss_gets_a_hint(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.chdir(checkpoint.parent)
    with pytest.raises(ModelNotFound, match=f"--model {name}: no such folder") as raised:
        resolve(name)
    assert hint in str(raised.value)


def test_a_file_is_not_a_folder(checkpoint: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve(str(checkpoint / "config.json"))


def test_a_revision_of_a_folder_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="revision='main'"):
        resolve(str(checkpoint), "main")


def test_a_folder_without_config_is_not_found(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve(str(checkpoint))


def test_a_folder_without_tokenizer_says_how_to_make_one(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(ModelUnsupported, match="save_pretrained"):
        resolve(str(checkpoint))


@pytest.mark.parametrize(
    ("backend", "names"),
    [("openvino", ["openvino_model.xml", "openvino_model.bin"]), ("ctranslate2", ["model.bin", "vocabulary.json"])],
)
def test_a_folder_in_an_engines_own_format_is_that_engines(tmp_path: Path, backend: str, names: list[str]) -> None:
    folder = write_checkpoint(tmp_path / "own")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelUnsupported, match=rf"model\.safetensors, nor {names[0]}, and no other format is loaded"):
        resolve(str(folder), backend=backend)
    for name in names:
        (folder / name).write_bytes(b"weights")
    assert resolve(str(folder), backend=backend) == folder
    with pytest.raises(ModelUnsupported, match=f"is in the format of {backend}: --backend {backend} loads it as it is"):
        resolve(str(folder))
    (folder / names[1]).write_bytes(b"")
    with pytest.raises(ModelCorrupt, match=f"{names[1]} is empty"):
        resolve(str(folder), backend=backend)
    (folder / names[1]).unlink()
    with pytest.raises(ModelCorrupt, match=f"{names[1]} is missing, a part of {backend}'s format; convert it again"):
        resolve(str(folder), backend=backend)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "other.safetensors"])
def test_pickled_weights_and_those_of_another_name_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "odd")
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelUnsupported, match=f"only {re.escape(name)}"):
        resolve(str(folder))


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    (checkpoint / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelCorrupt, match="model-00001-of-00002"):
        resolve(str(checkpoint))


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "", 7])
def test_an_index_cannot_name_files_elsewhere(checkpoint: Path, shard: object) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": shard}}))
    with pytest.raises(ModelCorrupt, match="no file of this folder"):
        resolve(str(checkpoint))


def test_an_index_may_name_a_file_with_a_name_that_no_file_has(checkpoint: Path) -> None:
    shard = "a" * 300 + ".safetensors"
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": shard}}))
    with pytest.raises(ModelCorrupt, match=r"aaa\.safetensors is missing"):
        resolve(str(checkpoint))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 1}', "{", "[" * 100_000])
def test_an_index_that_is_none_is_corrupt(checkpoint: Path, text: str) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelCorrupt, match="not an index"):
        resolve(str(checkpoint))


@pytest.mark.parametrize("kept", ["nothing", "half the length", "half the header", "the header", "all but a byte"])
def test_truncated_weights_are_corrupt(tmp_path: Path, kept: str) -> None:
    weights = write_checkpoint(tmp_path / "cut") / "model.safetensors"
    whole, header = weights.read_bytes(), header_length(weights)
    lengths = {"nothing": 0, "half the length": 4, "half the header": header // 2, "the header": header}
    weights.write_bytes(whole[: lengths.get(kept, len(whole) - 1)])
    with pytest.raises(ModelCorrupt, match="not a whole safetensors file"):
        resolve(str(weights.parent))


def _weights(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode()


@pytest.mark.parametrize(
    "start",
    [
        b"\xff" * 8,
        _weights("[]"),
        _weights('{"a": {}}'),
        _weights('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, Infinity]}}'),
        _weights('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e400]}}'),
        _weights('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -9]}}'),
        _weights('{"a": {"dtype": "F32", "shape": [4294967296, "F32"], "data_offsets": [0, 0]}}'),
        _weights("[" * 100_000),
    ],
    ids=range(8),
)
def test_weights_that_are_something_else_are_corrupt(tmp_path: Path, start: bytes) -> None:
    weights = write_checkpoint(tmp_path / "cut") / "model.safetensors"
    weights.write_bytes(start)
    with pytest.raises(ModelCorrupt, match="not a whole safetensors file"):
        resolve(str(weights.parent))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("config.json", 2**30),
        ("tokenizer.json", 2**30),
        ("chat_template.jinja", 2**25),
        ("model.safetensors.index.json", 2**28),
    ],
)
def test_a_file_that_is_too_large_to_be_read_whole_is_corrupt(checkpoint: Path, name: str, size: int) -> None:
    with (checkpoint / name).open("ab") as file:
        file.truncate(size)  # takes no place on the disk
    with pytest.raises(ModelCorrupt, match=f"{re.escape(name)} has more than"):
        resolve(str(checkpoint))
    if "index" not in name:
        with pytest.raises(ModelCorrupt, match=f"{re.escape(name)} has more than"):
            resolve_tokenizer(str(checkpoint))

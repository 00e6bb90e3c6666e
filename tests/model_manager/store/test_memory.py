"""The memory that a model takes, estimated from its files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.engine.loading.checkpoint import read_checkpoint
from millrace.model_manager.engine.loading.model_loader import memory_of
from millrace.model_manager.engine.loading.placement import Placement
from millrace.model_manager.store import resolve
from millrace.model_manager.store.gguf import gguf_files
from millrace.model_manager.store.locating import tokenizer_digest
from millrace.model_manager.store.memory import MemoryNeed, memory_need
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.machine import ENGINE_BYTES

CONFIG = ModelConfig(device="cpu", dtype="float32")
FOLDER = resolve(EMBEDDED_MODEL)


def need(**settings: object) -> MemoryNeed:
    return memory_need(msgspec.structs.replace(CONFIG, **settings), str(FOLDER))


def test_weights_and_cache_are_as_the_engine_counts_them() -> None:
    room = memory_of(CONFIG, FOLDER)
    assert need().fixed == room.weight_bytes + ENGINE_BYTES
    assert need().most_cache * CONFIG.block_size == (
        room.bytes_per_block * CONFIG.max_num_seqs * Placement.choose(CONFIG, read_checkpoint(FOLDER)).max_model_len
    )


def test_so_are_weights_that_are_stored_in_few_bits_with_a_tied_output_beside_them(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "model")
    config = json.loads((FOLDER / "config.json").read_bytes())
    stored = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"quantization_config": stored}))
    checkpoint = read_checkpoint(tmp_path / "model")
    placed = Placement.choose(CONFIG, checkpoint).weight_bytes
    assert memory_need(CONFIG, str(tmp_path / "model")).fixed == placed + ENGINE_BYTES
    assert placed == checkpoint.stored_bytes + checkpoint.weights.tied * 4 > checkpoint.stored_bytes


def test_settings_count() -> None:
    assert need(quantization="int8").fixed < need(dtype="bfloat16").fixed < need().fixed
    assert need(max_num_seqs=1).most_cache * 64 == need().most_cache
    assert need(kv_cache_gib=0.5).least_cache == need(kv_cache_gib=0.5).most_cache == 2**29
    assert need(max_loras=2).fixed > need(max_loras=1).fixed > need().fixed
    assert need(max_model_len=16, max_num_seqs=1).least_cache < need(max_num_seqs=1).least_cache
    draft = need(speculation="draft_model", draft_model=str(FOLDER))
    assert draft.fixed - ENGINE_BYTES == 2 * (need().fixed - ENGINE_BYTES)
    assert draft.most_cache == 2 * need().most_cache


def test_weights_in_another_engines_format_count_by_their_files(tmp_path: Path) -> None:
    for name, size in (("openvino_model.xml", 10), ("openvino_model.bin", 5000), ("openvino_tokenizer.bin", 70)):
        (tmp_path / name).write_bytes(bytes(size))
    shutil.copy(FOLDER / "config.json", tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert memory_need(ModelConfig(backend="openvino"), str(tmp_path)) == MemoryNeed(ENGINE_BYTES + 5080)


def test_a_server_takes_nothing_that_is_counted() -> None:
    endpoint = ModelConfig(backend="endpoint", backend_options={"urls": "http://127.0.0.1:9"})
    assert memory_need(endpoint, "/nowhere") == MemoryNeed()


def test_a_pipe_among_the_files_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert memory_need(CONFIG, str(tmp_path)) == MemoryNeed(ENGINE_BYTES)
    os.mkfifo(tmp_path / "tokenizer.json")
    assert tokenizer_digest(tmp_path) == tokenizer_digest(FOLDER.parent)
    os.mkfifo(tmp_path / "x-00002-of-00002.gguf")
    assert gguf_files("x-00001-of-00002.gguf", tmp_path) == []


_ODD_CONFIGS = [{"num_attention_heads": heads, "max_position_embeddings": 8} for heads in ("many", float("inf"), [1])]


@pytest.mark.parametrize("content", ["", "[]", "{}", *map(json.dumps, _ODD_CONFIGS)])
def test_what_cannot_be_read_counts_as_an_engine_alone_and_is_left_to_the_engine(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(FOLDER, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(content)
    assert memory_need(CONFIG, str(tmp_path / "model")) == MemoryNeed(ENGINE_BYTES)
    assert "cannot be estimated" in caplog.text

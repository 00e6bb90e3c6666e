"""A model divided between two processes answers as one process does, and its processes end together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from transformers import OPTConfig, Qwen3Config

from millrace.model_manager.engine.loading.ranks import check_divisible
from millrace.model_manager.engine.tensor_parallel.leader import PEER_LOST, load_divided
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.engine_messages import CacheResized, ResizeCache
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.transport import ConnectionLost
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.test_process import Manager, engine_process, request
from tests.processes import is_gone
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(1800)
PATIENCE = 400.0
"""Seconds for two processes to import torch and transformers on a machine that may be very busy."""
PROMPTS = {"a": [5, 9, 33, 4], "b": [7] * 40, "c": [100, 3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    random_checkpoints.write(path, random_checkpoints.llama_gqa())
    return path


@pytest.fixture
def divided(folder: Path) -> Iterator[Manager]:
    with engine_process() as manager:
        manager.sock.settimeout(PATIENCE)
        manager.ready(**_settings(folder, tensor_parallel=2))
        yield manager


def _settings(folder: Path, **settings: object) -> dict[str, object]:
    small = {"backend": "torch", "device": "cpu", "dtype": "float32", "kv_cache_gib": 0.01, "max_num_seqs": 4}
    return {"folder": folder, "num_threads": 1, "max_num_batched_tokens": 16, **small, **settings}


def _answers(manager: Manager) -> dict[str, list[int]]:
    manager.submit(*(request(name, 12, prompt) for name, prompt in PROMPTS.items()))
    manager.until(lambda: manager.outputs.keys() == PROMPTS.keys())
    return {name: output.token_ids for name, output in manager.outputs.items()}


def _resized(manager: Manager, size: int) -> int:
    manager.send(ResizeCache(size))
    return manager.expect(CacheResized).cache_bytes


def _peer(manager: Manager) -> psutil.Process:
    (peer,) = psutil.Process(manager.process.pid).children()
    return peer


@pytest.mark.slow
def test_two_processes_answer_as_one_does_and_end_with_a_peer(folder: Path, divided: Manager) -> None:
    with engine_process() as whole:
        whole.sock.settimeout(PATIENCE)
        whole.ready(**_settings(folder))
        assert _resized(divided, 0) == _resized(whole, 0), "the size is that of both processes"
        assert _answers(divided) == _answers(whole)
        assert _resized(divided, 2**40) == _resized(whole, 2**40) <= 0.01 * 2**30
    _peer(divided).kill()
    with pytest.raises(ConnectionLost):
        divided.until(lambda: False)
    status, log = divided.ended()
    assert status == PEER_LOST
    assert "its process of rank 1 ended with status -9" in log


@pytest.mark.slow
def test_peers_end_with_the_engine(divided: Manager) -> None:
    peer = _peer(divided)
    assert peer.name() == "millrace-peer"
    os.kill(divided.process.pid, signal.SIGKILL)
    eventually(lambda: is_gone(peer), "the end of the peer")


def test_a_model_that_cannot_be_divided_is_refused_before_a_process_starts(folder: Path) -> None:
    before = {*psutil.Process().children()}
    with pytest.raises(ConfigError, match=r"^tensor_parallel=3: takes a divisor of this model's 2 KV heads$"):
        load_divided(ModelConfig(model=str(folder), tensor_parallel=3), folder)
    assert {*psutil.Process().children()} <= before


def test_what_cannot_be_divided_is_known_before_it_is_loaded() -> None:
    two, qwen3 = ModelConfig(tensor_parallel=2), Qwen3Config(num_attention_heads=4, num_key_value_heads=2)
    check_divisible(qwen3, two)
    with pytest.raises(ConfigError, match="tensor_parallel=4: takes a divisor of this model's 2 KV heads"):
        check_divisible(qwen3, ModelConfig(tensor_parallel=4))
    with pytest.raises(ConfigError, match="tensor_parallel=2: transformers has no plan for opt models; takes 1"):
        check_divisible(OPTConfig(), two)
    with pytest.raises(ConfigError, match="takes 1 with quantization='int8'"):
        check_divisible(qwen3, ModelConfig(tensor_parallel=2, quantization="int8"))

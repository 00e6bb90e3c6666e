"""Scores and embeddings equal those from transformers' own logits and hidden states: alone, and in any company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedConfig

from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.whole_engines import engine_of, outputs_of

_SETTINGS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "together": {},
    "in chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 4},
    "cached": {"prefix_caching": True, "max_num_batched_tokens": 32, "max_num_seqs": 8},
}


def _tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    tokens: list[int] = torch.randint(2, random_checkpoints.VOCAB, (200,), generator=generator)[:length].tolist()
    return tokens


def _requests() -> list[Request]:
    """All of one text, so that those that may share a prefix do."""
    scores = [
        Request(f"score {length} {first}", _tokens(length), SamplingParams(), task="score", score_from=first)
        for length, first in ((90, 1), (90, 70), (2, 1), (33, 17), (48, 16))
    ]
    embeddings = [
        Request(f"{pooling} {length}", _tokens(length), SamplingParams(), task="embed", pooling=pooling)
        for pooling in ("last", "mean")
        for length in (1, 40, 90)
    ]
    sampling = SamplingParams(max_tokens=20, ignore_eos=True, prompt_logprobs=5)
    return [Request("generate", _tokens(40), sampling), *scores, *embeddings, Request("more", _tokens(60), sampling)]


@pytest.mark.parametrize("make", random_checkpoints.ALL, ids=lambda make: make.__name__)
def test_they_are_transformers_own(tmp_path: Path, make: Callable[[], PreTrainedConfig]) -> None:
    _check_all(random_checkpoints.write(tmp_path, make()), tmp_path, tolerance=1e-3)  # logits are far apart there


def test_of_a_trained_model_they_are_transformers_own() -> None:
    folder = resolve(EMBEDDED_MODEL)
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _check_all(model.eval(), folder, tolerance=1e-4)


def _check_all(model: Any, folder: Path, tolerance: float) -> None:
    defaults = ModelConfig(model="golden", num_threads=1, kv_cache_gib=0.05, dtype="float32", prefix_caching=False)
    loaded = load_model(defaults, folder)
    for settings in _SETTINGS.values():
        config = msgspec.structs.replace(defaults, **settings)
        outputs = outputs_of(engine_of(loaded, config), _requests())
        for request in _requests():
            _check(model, request, outputs[request.request_id], tolerance)


@torch.inference_mode()
def _check(model: Any, request: Request, output: Output, tolerance: float) -> None:
    ids = torch.tensor([request.prompt_token_ids])
    if request.task == "embed":
        states = model.model(ids).last_hidden_state[0]
        wanted = torch.nn.functional.normalize(states[-1] if request.pooling == "last" else states.mean(0), dim=0)
        assert output.embedding is not None
        np.testing.assert_allclose(np.frombuffer(output.embedding, "<f4"), wanted, rtol=0, atol=1e-4)
        return
    first = max(1, request.score_from)
    logprobs = model(ids).logits[0].log_softmax(-1)[first - 1 : -1]
    got = output.prompt_logprobs
    assert got is not None
    np.testing.assert_allclose(got.logprobs, logprobs.gather(1, ids[0, first:, None])[:, 0], rtol=0, atol=tolerance)
    assert got.greedy == (logprobs.argmax(-1) == ids[0, first:]).tolist()
    if request.task == "generate":
        np.testing.assert_allclose(got.top_logprobs, logprobs.topk(5).values, rtol=0, atol=tolerance)
        if model.config.eos_token_id is None:
            assert output.token_ids == random_checkpoints.greedy(model, request.prompt_token_ids, 20)

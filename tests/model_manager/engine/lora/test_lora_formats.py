"""Adapters on base weights of every format: the answers follow from what the weights are worth, plus the adapter.

On the embedded model, which is trained: random weights would magnify the rounding of the layers' inputs.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.quantization.precision import INT4_GROUP
from millrace.model_manager.engine.quantization.rounding import round_groups, round_rows
from millrace.model_manager.store import find_adapter, resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.request import Adapter, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import adapters_made_here
from tests.model_manager.engine.whole_engines import load_engine, outputs_of

_TEXT = "What is the capital of France? Paris. What is 3 + 4? 7. The review is positive because the food was good."
_TARGETS = ("q_proj", "k_proj", "o_proj", "down_proj", "up_proj")
_FORMATS = [("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int8"), ("float32", "int4"), ("bfloat16", "int4")]

Scored = dict[str, torch.Tensor]
"""Log-probabilities of a text's tokens but the first, by adapter; the empty name is the model's own."""


@pytest.fixture(scope="module")
def model() -> Any:
    return LlamaForCausalLM.from_pretrained(resolve(EMBEDDED_MODEL), dtype=torch.float32)


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    return Tokenizer.load(resolve(EMBEDDED_MODEL)).encode(_TEXT)


@pytest.fixture(scope="module")
def adapters(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Adapter]:
    """One as it was trained, one whose factors are kept in bfloat16."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {
        name: adapters_made_here.write(folder / name, model, _TARGETS, seed=seed, size=0.07)
        for seed, name in enumerate(("full", "half"))
    }
    weights = folder / "half" / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(weights).items()}, weights)
    return made | {"half": find_adapter(made["half"].folder)}


def _engine(dtype: str, quantization: str) -> LLMEngine:
    settings = {"model": "lora", "max_loras": 2, "max_lora_rank": 8, "num_threads": 1, "kv_cache_gib": 0.02}
    config = ModelConfig.parse(
        {**settings, "device": "cpu", "dtype": dtype, "quantization": quantization, "max_num_batched_tokens": 64}
    )
    return load_engine(resolve(EMBEDDED_MODEL), config)


def _scored(engine: LLMEngine, prompt: list[int], adapters: dict[str, Adapter]) -> Scored:
    """All of them in the same steps."""
    requests = [
        Request(
            name, prompt, SamplingParams(adapter=each.name if each else ""), task="score", score_from=1, adapter=each
        )
        for name, each in [("", None), *adapters.items()]
    ]
    found = {name: output.prompt_logprobs for name, output in outputs_of(engine, requests).items()}
    return {name: torch.tensor(logprobs.logprobs) for name, logprobs in found.items() if logprobs is not None}


def _wanted(model: Any, dtype: str, quantization: str, prompt: list[int], adapters: dict[str, Adapter]) -> Scored:
    worth = deepcopy(model)
    for layer in worth.modules():
        if type(layer) is torch.nn.Linear and layer is not worth.lm_head:
            layer.weight.data = _worth(layer.weight.data, quantization)
    if dtype == "bfloat16":
        for parameter in worth.parameters():
            parameter.data = parameter.data.bfloat16().float()
    models = {"": worth} | {name: adapters_made_here.merged(worth, each, 2.0) for name, each in adapters.items()}
    with torch.inference_mode():
        logits = {name: each(torch.tensor([prompt])).logits[0] for name, each in models.items()}
    return {name: each.log_softmax(-1)[range(len(prompt) - 1), prompt[1:]] for name, each in logits.items()}


def _worth(weight: torch.Tensor, quantization: str) -> torch.Tensor:
    match quantization:
        case "int8":
            return round_rows(weight, torch.int8).values()
        case "int4":
            return round_groups(weight, INT4_GROUP).values()
    return weight


@pytest.mark.parametrize(("dtype", "quantization"), _FORMATS)
def test_an_adapter_adds_no_more_error_than_the_format_has_without_it(
    model: Any, prompt: list[int], adapters: dict[str, Adapter], dtype: str, quantization: str
) -> None:
    got = _scored(_engine(dtype, quantization), prompt, adapters)
    wanted = _wanted(model, dtype, quantization, prompt, adapters)
    error = {name: float((got[name] - wanted[name]).norm()) for name in wanted}
    for name in adapters:
        assert error[name] < 2 * error[""]
        assert error[name] < 0.2 * float((wanted[name] - wanted[""]).norm()), "what the adapter changes is far larger"

"""All that a model runs on where there is a GPU, on a CPU: `TRITON_INTERPRET=1 python -m …cuda_checks`.

Merged products, one-kernel norms, Triton's attention, steps placed in one transfer, captured decoding (a capture here
does the work again), sampling by torch, and an engine that runs ahead: against plain torch, one step after the other.
A process of its own, because the interpreter is chosen for a whole process when triton is imported.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from millrace.model_manager.engine.cuda import graphs as cuda_graphs
from millrace.model_manager.engine.cuda import runner as cuda
from millrace.model_manager.engine.paged_attention import CacheShape
from millrace.model_manager.engine.torch import attention_hook
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from millrace.model_manager.engine.torch.merged_linears import SharedLinear
from millrace.model_manager.engine.torch.model_runner import TorchModelRunner
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.cuda.test_graphs import FakeCapture
from tests.model_manager.engine.test_running_ahead import generated
from tests.model_manager.engine.tested_models import qwen3

CPU = torch.device("cpu")
BLOCK, NUM_BLOCKS, MAX_LEN = 16, 16, 64
REQUESTS = [
    Request(str(n), list(range(2, 4 + 9 * n)), SamplingParams(max_tokens=4 + 2 * n, ignore_eos=True, temperature=t))
    for n, t in enumerate((0.0, 0.8, 0.0))
]


def main() -> None:
    """Compare, with the cache as it comes and rounded."""
    for rounded in (None, torch.int8):
        config = qwen3()
        got, wanted = answers(_interpreted_runner(config, rounded)), answers(plain_runner(config, rounded))
        assert got == wanted, (rounded, got, wanted)


def _interpreted_runner(config: Any, rounded: torch.dtype | None) -> Any:
    capture = FakeCapture()
    properties = SimpleNamespace(multi_processor_count=1)
    with (
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.object(cuda_graphs, "CudaCapture", return_value=capture),
    ):
        runner = runner_on(CPU, config, rounded)
    assert capture.captured == [4, 2, 1]
    runner.runs_ahead = True
    return runner


def runner_on(device: torch.device, config: Any, rounded: torch.dtype | None) -> Any:
    """What runs a model on a GPU, on that device."""
    model = model_of(config).to(device)
    runner = cuda.cuda_runner(model, _settings(), _shape(config, rounded), device=device, captures=True,
                              max_model_len=MAX_LEN, **_sizes(config))  # fmt: skip
    assert isinstance(model.model.layers[0].self_attn.q_proj, SharedLinear)
    return runner


def plain_runner(config: Any, rounded: torch.dtype | None) -> TorchModelRunner:
    """Plain torch, on a CPU."""
    attention = GatheringAttention(_shape(config, rounded), CPU)
    return TorchModelRunner(model_of(config), attention, device=CPU, max_model_len=MAX_LEN, **_sizes(config))


def model_of(config: PreTrainedConfig) -> Any:
    """A model of random weights on a CPU."""
    torch.manual_seed(0)
    attention_hook.register()
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=attention_hook.IMPLEMENTATION)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3)
    return model.eval().requires_grad_(False)


def _settings() -> ModelConfig:
    return ModelConfig(max_num_seqs=3, max_num_batched_tokens=16, block_size=BLOCK)


def _shape(config: Any, rounded: torch.dtype | None) -> CacheShape:
    heads = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    return CacheShape(*heads, NUM_BLOCKS, BLOCK, torch.float32, rounded)


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK,
        "eos_token_ids": [],
        "adapters": None,
    }


def answers(runner: Any) -> dict[str, list[int]]:
    """The tokens that an engine on this runner generates for REQUESTS."""
    sizes = {"max_model_len": MAX_LEN, "num_blocks": NUM_BLOCKS, "block_size": BLOCK}
    return generated(runner, REQUESTS, _settings(), **sizes)


if __name__ == "__main__":
    main()

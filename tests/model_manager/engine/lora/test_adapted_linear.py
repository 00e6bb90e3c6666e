"""Greedy outputs with adapters equal transformers' outputs with the adapter merged into the weights."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, PreTrainedConfig

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.loading.model_loader import LoadedModel, load_model
from millrace.model_manager.store import find_adapter
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Adapter, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import adapters_made_here, random_checkpoints
from tests.model_manager.engine.tested_models import qwen3_moe
from tests.model_manager.engine.whole_engines import ended, engine_of, outputs_of

_PROMPTS = [[5 + number, *range(20, 20 + length)] for number, length in enumerate((3, 30, 17, 50))]
_COUNT = 12


def gpt2() -> PreTrainedConfig:
    return GPT2Config(vocab_size=random_checkpoints.VOCAB, n_positions=256, n_embd=64, n_layer=2, n_head=4,
                      bos_token_id=0, eos_token_id=None)  # fmt: skip


class _Case:
    """A model with the adapters "a", "b" and "c" (and "", none), and what transformers answers with each."""

    def __init__(self, folder: Path, config: PreTrainedConfig, targets: tuple[str, ...]) -> None:
        self.model = random_checkpoints.write(folder / "model", config)
        self.folder = folder
        make = adapters_made_here.write
        wide = targets[-1]
        self.adapters: dict[str, Adapter | None] = {
            "": None,
            "a": make(folder / "a", self.model, targets, seed=1),
            "b": make(folder / "b", self.model, targets[:1], seed=2, use_rslora=True),
            "c": make(folder / "c", self.model, targets, seed=3, ranks={wide: 8}, alpha_pattern={wide: 24}),
        }
        scales: dict[str, Any] = {"a": 2.0, "b": 8 / math.sqrt(4), "c": dict.fromkeys(targets, 2.0) | {wide: 3.0}}
        self.outputs = {}
        for name, adapter in self.adapters.items():
            model = adapters_made_here.merged(self.model, adapter, scales[name]) if adapter else self.model
            self.outputs[name] = [random_checkpoints.greedy(model, prompt, _COUNT) for prompt in _PROMPTS]
        self.loaded: dict[int, LoadedModel] = {}

    def engine(self, max_loras: int = 3, num_blocks: int | None = None, **settings: Any) -> LLMEngine:
        config = _config(max_loras, **settings)
        if max_loras not in self.loaded:
            self.loaded[max_loras] = load_model(_config(max_loras), self.folder / "model")
        loaded = self.loaded[max_loras]
        runner: Any = copy(loaded.runner)
        runner.num_blocks = num_blocks or runner.num_blocks
        return engine_of(replace(loaded, runner=runner), config)

    def request(self, name: str, index: int) -> Request:
        return _request(f"{name}{index}", _PROMPTS[index], self.adapters[name])

    def requests(self, names: Iterable[str] = ("", "a", "b", "c")) -> list[Request]:
        return [self.request(name, index) for index in range(len(_PROMPTS)) for name in names]

    def check(self, outputs: dict[str, Output], names: Iterable[str] = ("", "a", "b", "c")) -> None:
        for name in names:
            assert [outputs[f"{name}{index}"].token_ids for index in range(len(_PROMPTS))] == self.outputs[name]


def _config(max_loras: int, **settings: Any) -> ModelConfig:
    defaults: dict[str, Any] = {"num_threads": 1, "kv_cache_gib": 0.01, "prefix_caching": False, "block_size": 8}
    return ModelConfig(model="lora", max_loras=max_loras, **defaults | {"max_lora_rank": 8} | settings)


def _request(request_id: str, prompt: list[int], adapter: Adapter | None) -> Request:
    params = SamplingParams(max_tokens=_COUNT, adapter=adapter.name if adapter else "")
    return Request(request_id, prompt, params, adapter=adapter)


_LLAMA = ("q_proj", "k_proj", "o_proj", "down_proj", "up_proj")
_CASES: dict[str, tuple[Callable[[], PreTrainedConfig], tuple[str, ...]]] = {
    "llama": (random_checkpoints.llama_gqa, _LLAMA),
    "opt": (random_checkpoints.opt, ("q_proj", "fc1", "fc2")),  # fc1's ReLU must not move into its product
    "gpt2": (gpt2, ("c_attn", "c_proj", "c_fc")),
    "moe": (qwen3_moe, ("q_proj", "v_proj")),
}


@pytest.fixture(scope="module", params=list(_CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Case:
    make, targets = _CASES[request.param]
    return _Case(tmp_path_factory.mktemp("lora"), make(), targets)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> _Case:
    return _Case(tmp_path_factory.mktemp("llama"), random_checkpoints.llama_gqa(), _LLAMA)


def test_each_adapter_answers_otherwise(case: _Case) -> None:
    """Otherwise equality would say little."""
    for index in range(len(_PROMPTS)):
        assert len({tuple(case.outputs[name][index]) for name in case.outputs}) == 4


def test_alone_and_three_adapters_mixed_with_the_model_itself(case: _Case) -> None:
    engine = case.engine()
    for request in case.requests():
        name, index = request.request_id[:-1], int(request.request_id[-1])
        assert outputs_of(engine, [request])[request.request_id].token_ids == case.outputs[name][index]
    case.check(outputs_of(engine, case.requests()))


def test_arriving_one_by_one_in_small_chunks(case: _Case) -> None:
    case.check(outputs_of(case.engine(max_num_seqs=5, max_num_batched_tokens=7), arrivals=case.requests()))


def test_preempted(llama: _Case) -> None:
    engine = llama.engine(num_blocks=16)
    llama.check(outputs_of(engine, llama.requests()))
    assert engine.stats().preemptions > 0


def test_adapters_share_cached_beginnings_with_none_but_themselves(llama: _Case) -> None:
    engine = llama.engine(prefix_caching=True)
    for name in llama.outputs:
        first, again = (outputs_of(engine, [llama.request(name, 3)])[f"{name}3"] for _ in range(2))
        assert (first.token_ids, again.token_ids) == (llama.outputs[name][3],) * 2
        assert (first.cached_tokens, again.cached_tokens) == (0, 48)


def test_one_slot_serves_two_adapters_in_turn(llama: _Case) -> None:
    engine = llama.engine(max_loras=1)
    llama.check(outputs_of(engine, llama.requests(["a", "b", ""])), ["a", "b", ""])
    llama.check(outputs_of(engine, arrivals=llama.requests(["b", "a"])), ["a", "b"])


def test_with_speculation(llama: _Case) -> None:
    engine = llama.engine(speculation="prompt_lookup")
    llama.check(outputs_of(engine, arrivals=llama.requests()))


def test_scores_and_vectors_are_the_adapters_too(llama: _Case) -> None:
    def scored(name: str) -> list[float]:
        request = llama.request(name, 1)
        request = msgspec.structs.replace(request, task="score", score_from=5)
        found = outputs_of(llama.engine(), [request])[f"{name}1"].prompt_logprobs
        assert found is not None
        return found.logprobs

    adapter = llama.adapters["a"]
    assert adapter is not None
    model = adapters_made_here.merged(llama.model, adapter, 2.0)
    prompt = torch.tensor([_PROMPTS[1]])
    with torch.inference_mode():
        wanted = model(prompt).logits[0].log_softmax(-1)[range(4, 30), _PROMPTS[1][5:]]
    torch.testing.assert_close(torch.tensor(scored("a")), wanted, atol=1e-4, rtol=1e-4)
    assert scored("a") != scored("")


# ── adapters that are refused ────────────────────────────────────────────────────────────────────────────────────────


def _settings(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tensors(adapter: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = change(load_file(path))
    save_file(tensors, path)


def _garble(adapter: Path) -> None:
    (adapter / "adapter_config.json").write_bytes(b"\xff{")


def _remove(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()


def _replace_by_a_pipe(adapter: Path) -> None:
    _remove(adapter)
    os.mkfifo(adapter / "adapter_model.safetensors")


def _widen(adapter: Path) -> None:
    """Widen the adapter to rank 16."""
    _settings(adapter, r=16)
    _tensors(adapter, lambda pairs: {k: torch.cat([v] * 4, dim=int("lora_B" in k)) for k, v in pairs.items()})


def _renamed(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


_BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "dora": (lambda path: _settings(path, use_dora=True), "use_dora=True is not supported"),
    "modules_to_save": (lambda path: _settings(path, modules_to_save=["lm_head"]), "modules_to_save=.*not supported"),
    "an unknown setting": (lambda path: _settings(path, novelty={"x": 1}), "novelty=.* is not supported"),
    "bias": (lambda path: _settings(path, bias="all"), "bias='all': takes 'none'"),
    "pissa": (lambda path: _settings(path, init_lora_weights="pissa"), "init_lora_weights='pissa': takes "),
    "another method": (lambda path: _settings(path, peft_type="IA3"), "peft_type='IA3': takes 'LORA'"),
    "a rank that is no number": (lambda path: _settings(path, r="many"), "r='many': takes an integer"),
    "no settings": (_garble, "adapter_config.json: "),
    "another rank": (lambda path: _settings(path, r=5), "[qv]_proj: has factors of .* rank 5, take"),
    "no rank": (lambda path: _settings(path, r=0), "rank 0, take"),
    "too high a rank": (_widen, "rank 16.*max_lora_rank=8"),
    "a pattern": (lambda path: _settings(path, rank_pattern={"layers.[01].q_proj": 4}), "rank_pattern has"),
    "a target without weights": (lambda path: _settings(path, target_modules=["q_proj", "v_proj", "z"]), "'z'"),
    "weights without a target": (lambda path: _settings(path, target_modules=["q_proj"]), "v_proj.*do not name"),
    "another model": (
        lambda path: _tensors(path, _renamed("layers.2", "layers.7")),
        "layers.7.* which is no linear layer",
    ),
    "the output layer": (
        lambda path: _tensors(path, _renamed("model.layers.0.self_attn.q_proj", "lm_head")),
        "lm_head",
    ),
    "an embedding": (lambda path: _tensors(path, _renamed("lora_A.weight", "lora_embedding_A")), "lora_embedding_A"),
    "half of a pair": (
        lambda path: _tensors(path, lambda pairs: {k: v for k, v in pairs.items() if "lora_A" in k}),
        "has factors of {'A'",
    ),
    "no weights": (lambda path: _tensors(path, lambda _: {}), "has no weights"),
    "transposed": (
        lambda path: _tensors(path, lambda pairs: {name: each.t().contiguous() for name, each in pairs.items()}),
        "has factors of",
    ),
}


@pytest.mark.parametrize("name", list(_BAD))
def test_a_bad_adapter_fails_its_own_request_by_name(llama: _Case, name: str, tmp_path: Path) -> None:
    spoil, message = _BAD[name]
    adapters_made_here.write(tmp_path / "bad", llama.model)
    spoil(tmp_path / "bad")
    bad = find_adapter(str(tmp_path / "bad"))
    engine = llama.engine(max_loras=1)
    requests = [llama.request("a", 0), _request("bad", [5, 6], bad), llama.request("", 0), _request("bad2", [5], bad)]
    outputs, failures = ended(engine, requests)
    assert {key: output.token_ids for key, output in outputs.items()} == {
        "a0": llama.outputs["a"][0],
        "0": llama.outputs[""][0],
    }
    assert failures.keys() == {"bad", "bad2"}
    for failure in failures.values():
        assert failure.error.kind == "InvalidRequest"
        with pytest.raises(InvalidRequest, match=message):
            raise failure.error.exception()
        assert failure.error.message.startswith(f"adapter {bad.name}: ")
    llama.check(outputs_of(engine, llama.requests(["b"])), ["b"])  # the slot is still good for others


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: _settings(path, r=3), "changed since"),
        (_remove, "cannot be read"),
        (_replace_by_a_pipe, "is no file"),
    ],
)
def test_files_that_changed_or_went_since_the_request_was_sent_say_nothing_of_the_adapter(
    llama: _Case, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    adapter = adapters_made_here.write(tmp_path / "whole", llama.model, seed=len(message))
    spoil(shutil.copytree(adapter.folder, tmp_path / "gone"))
    engine, elsewhere = llama.engine(), msgspec.structs.replace(adapter, folder=str(tmp_path / "gone"))
    _, failures = ended(engine, [_request("bad", [5], elsewhere)])
    assert message in failures["bad"].error.message
    outputs, _ = ended(engine, [_request("good", [5], adapter)])
    assert outputs.keys() == {"good"}


def test_a_model_that_takes_no_adapters_says_so(llama: _Case) -> None:
    engine = llama.engine(max_loras=0)
    with pytest.raises(InvalidRequest, match="needs max_loras of 1 or more"):
        engine.add(llama.request("a", 0))
    with pytest.raises(InvalidRequest, match="takes one that its client has resolved"):
        llama.engine().add(Request("x", [5], SamplingParams(adapter="somewhere")))


def test_without_adapters_in_a_step_the_answers_are_the_compiled_models(llama: _Case) -> None:
    llama.check(outputs_of(llama.engine(max_loras=0), llama.requests([""])), [""])

"""A running engine's KV cache gives memory back and takes it again, and no answer changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.interface import Engine, ResizableEngine
from millrace.model_manager.engine.loading.model_loader import load_model, load_with_draft
from millrace.model_manager.engine.torch.gathering_attention import GatheringAttention
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.history_runner import BYTES_PER_BLOCK, EngineUnderTest, HistoryRunner, request
from tests.model_manager.engine.whole_engines import engine_of


def resized(engine: LLMEngine, size: int) -> int:
    """Bytes of the cache once it has changed."""
    engine.resize_cache(size)
    result = engine.step()
    assert result.cache_bytes is not None
    return result.cache_bytes


def test_an_engine_that_has_nothing_to_do_changes_its_cache_with_its_next_step() -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=64, max_model_len=80))
    engine = under_test.engine
    assert engine.info.cache_bytes == 64 * BYTES_PER_BLOCK
    engine.resize_cache(20 * BYTES_PER_BLOCK + 1)
    assert engine.has_work()
    assert engine.step().cache_bytes == 20 * BYTES_PER_BLOCK
    assert not engine.has_work()
    assert engine.stats().blocks_total == 20


def test_it_keeps_what_one_sequence_of_full_length_needs_and_gets_no_larger_than_it_was() -> None:
    engine = EngineUnderTest(HistoryRunner(num_blocks=64, max_model_len=81)).engine
    assert resized(engine, 0) == 11 * BYTES_PER_BLOCK
    assert resized(engine, 2**60) == 64 * BYTES_PER_BLOCK


def test_an_engine_whose_cache_cannot_give_memory_back_says_so() -> None:
    runner = HistoryRunner()
    runner.bytes_per_block = 0
    assert EngineUnderTest(runner).engine.info.cache_bytes == 0


def test_a_step_that_is_under_way_is_collected_before_the_cache_changes() -> None:
    under_test = EngineUnderTest(HistoryRunner(num_blocks=32, max_model_len=80, runs_ahead=True))
    asked = [request(str(number), [number + 1] * 20, max_tokens=30) for number in range(4)]
    undisturbed = EngineUnderTest(HistoryRunner(num_blocks=32, max_model_len=80)).run(*asked)
    for each in asked:
        under_test.engine.add(each)
    for _ in range(9):
        under_test.step()
    under_test.engine.resize_cache(0)
    under_test.step()
    while under_test.engine.has_work():
        under_test.step()
    assert [under_test.outputs[each.request_id].token_ids for each in asked] == [o.token_ids for o in undisturbed]
    assert under_test.engine.stats().preemptions > 0


# ── real models ──────────────────────────────────────────────────────────────────────────────────────────────────────


def config(**settings: Any) -> ModelConfig:
    defaults = {"model": "small", "kv_cache_gib": 0.002, "num_threads": 1, "max_num_seqs": 6, "dtype": "float32"}
    return ModelConfig(**defaults | settings)  # type: ignore[arg-type]


def rows(count: int = 12) -> list[Request]:
    """Greedy and seeded requests, some of which share a beginning."""
    chance = random.Random(3)

    def prompt(number: int) -> list[int]:
        own = [chance.randrange(2, random_checkpoints.VOCAB) for _ in range(chance.randrange(5, 60))]
        return [number % 3 + 2] * 40 + own

    params = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}]
    return [
        Request(str(number), prompt(number), SamplingParams(max_tokens=40, ignore_eos=True, **params[number % 2]))  # type: ignore[arg-type]
        for number in range(count)
    ]


def tokens_of(engine: LLMEngine, sizes: dict[int, float]) -> dict[str, list[int]]:
    """The tokens of all rows, where the cache has these shares of its size from these steps on."""
    outputs: list[Output] = []
    for each in rows():
        engine.add(each)
    steps = 0
    while engine.has_work():
        if steps in sizes:
            engine.resize_cache(int(sizes[steps] * engine.info.cache_bytes))
        outputs += engine.step().outputs
        engine.check_integrity()
        steps += 1
    return {output.request_id: output.token_ids for output in outputs}


SIZES = {5: 0.0, 40: 1.0, 60: 0.0, 61: 0.5, 90: 0.3}


@pytest.mark.parametrize(
    "settings",
    [{}, {"kv_cache_dtype": "int8"}, {"quantization": "int4"}, {"max_loras": 1}, {"draft": True}],
    ids=["compiled", "int8 cache", "through transformers", "adapters", "draft model"],
)
def test_no_answer_changes_when_the_cache_shrinks_and_grows(tmp_path: Path, settings: dict[str, Any]) -> None:
    random_checkpoints.write(tmp_path / "model", random_checkpoints.qwen2())
    has_draft = settings.pop("draft", False)
    if has_draft:
        random_checkpoints.write(tmp_path / "draft", random_checkpoints.llama_gqa())
        settings = {"draft_model": str(tmp_path / "draft"), "speculation": "draft_model", "num_speculative_tokens": 2}
    answers, preemptions = [], []
    no_sizes: dict[int, float] = {}
    for sizes in (no_sizes, SIZES):
        loaded, draft_runner = load_with_draft(config(**settings), tmp_path / "model")
        engine = engine_of(loaded, config(**settings), draft_runner=draft_runner)
        answers.append(tokens_of(engine, sizes))
        preemptions.append(engine.stats().preemptions)
    assert answers[0] == answers[1]
    assert preemptions[1] > preemptions[0]


@pytest.mark.parametrize("settings", [{}, {"kv_cache_dtype": "int8"}], ids=["as it comes", "int8"])
@pytest.mark.parametrize("gathers", [False, True], ids=["kernel", "gathering"])
def test_memory_is_really_given_back(
    tmp_path: Path, settings: dict[str, Any], gathers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_checkpoints.write(tmp_path, random_checkpoints.qwen2())
    if gathers:
        monkeypatch.setattr("millrace.model_manager.engine.loading.compiled_loader.supports", lambda _: False)
        monkeypatch.setattr("millrace.model_manager.engine.loading.transformers_loader.supports", lambda _: False)
    asked = config(kv_cache_gib=0.2, max_num_seqs=4000, max_num_batched_tokens=4000, **settings)
    loaded = load_model(asked, tmp_path)
    runner: Any = loaded.runner
    attention = runner._attention
    assert isinstance(attention, GatheringAttention) is gathers
    states = [] if not gathers else [attention._keys, attention._values]
    caches = [part for each in states for part in (each._states, each._scales)] or [attention._cache]
    for cache in caches:
        cache.fill_(1)
    engine = engine_of(loaded, asked)
    full = psutil.Process().memory_info().rss
    size = engine.info.cache_bytes
    assert size > 150 * 2**20
    assert resized(engine, size // 4) <= size // 4
    given_back = full - psutil.Process().memory_info().rss
    assert given_back > 0.6 * size
    assert resized(engine, size) == size
    assert full - psutil.Process().memory_info().rss > 0.6 * size, "it takes memory only as blocks are used"


def test_an_engine_of_ours_is_resizable_and_another_need_not_be() -> None:
    engine: Engine = EngineUnderTest().engine
    assert isinstance(engine, ResizableEngine)

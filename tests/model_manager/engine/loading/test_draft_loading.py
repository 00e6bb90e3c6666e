"""Real models that speculate: outputs equal the outputs of the model alone, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.loading.model_loader import load_model, load_with_draft
from millrace.model_manager.engine.speculation.drafts import Policy
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.engine.drafting import unrestrained
from tests.model_manager.engine.whole_engines import engine_of, outputs_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    random_checkpoints.write(path, random_checkpoints.llama_gqa())
    return path


@pytest.fixture(scope="module")
def similar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, a little off."""
    path = tmp_path_factory.mktemp("similar")
    model = random_checkpoints.write(path, random_checkpoints.llama_gqa())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    model.save_pretrained(path)
    return path


def config(folder: Path, **settings: Any) -> ModelConfig:
    return ModelConfig(model=str(folder), num_threads=1, kv_cache_gib=0.02, **settings)


def answers(folder: Path, policy: Policy | None = None, **settings: Any) -> tuple[list[Output], LLMEngine]:
    asked = config(folder, **settings)
    loaded, draft_runner = load_with_draft(asked, folder)
    engine = engine_of(loaded, asked, draft_runner=draft_runner, policy=policy)
    generator = torch.Generator().manual_seed(3)
    requests = []
    for n in range(6):
        prompt = torch.randint(2, random_checkpoints.VOCAB, (5 + 9 * n,), generator=generator).tolist() * 2
        parameters = {"max_tokens": 40, "temperature": 0.4 * (n % 3), "repetition_penalty": 1 + 0.1 * (n % 2)}
        requests.append(Request(str(n), prompt, SamplingParams.parse(parameters)))
    outputs = outputs_of(engine, requests)
    return [outputs[str(n)] for n in range(6)], engine


@pytest.mark.parametrize("num_drafts", [1, 4])
def test_outputs_of_a_real_model_are_those_without_speculation(folder: Path, similar: Path, num_drafts: int) -> None:
    plain = [output.token_ids for output in answers(folder)[0]]
    policy = unrestrained(num_drafts)
    copied, _ = answers(folder, policy, speculation="prompt_lookup")
    drafted, engine = answers(folder, policy, speculation="draft_model", draft_model=str(similar))
    assert [output.token_ids for output in copied] == plain
    assert [output.token_ids for output in drafted] == plain
    stats = engine.stats()
    assert stats.drafted_tokens > stats.accepted_tokens > 40


def test_both_caches_together_keep_to_what_was_set_aside(folder: Path, similar: Path) -> None:
    alone = load_model(config(folder), folder).info.num_blocks
    loaded, runner = load_with_draft(config(folder, speculation="draft_model", draft_model=str(similar)), folder)
    assert runner is not None
    assert runner.num_blocks == loaded.info.num_blocks == alone // 2


def test_a_draft_model_of_another_vocabulary_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    other = random_checkpoints.llama_gqa()
    other.vocab_size = 99
    random_checkpoints.write(tmp_path, other)
    with pytest.raises(ConfigError, match=r"^draft_model=.*: has 99 tokens, .* has 211; takes a model of the same"):
        load_with_draft(config(folder, speculation="draft_model", draft_model=str(tmp_path)), folder)


def test_a_draft_model_whose_tokens_mean_something_else_is_refused_by_name(tmp_path: Path) -> None:
    for name, words in (("a", ["x", "y"]), ("b", ["y", "x"])):
        (tmp_path / name).mkdir()
        tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="x"))
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    asked = config(tmp_path / "a", speculation="draft_model", draft_model=str(tmp_path / "b"))
    with pytest.raises(ConfigError, match=r"^draft_model=.* token ids that mean something else"):
        load_with_draft(asked, tmp_path / "a")

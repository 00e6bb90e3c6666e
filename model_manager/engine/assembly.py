"""Our engine, made of a model's folder. Importing this imports what an engine needs, whatever its model."""

from __future__ import annotations

from pathlib import Path

from ..grammars.compiling import GrammarCompiler
from ..wire.config import ModelConfig
from .engine import LLMEngine
from .interface import Engine
from .loading.draft_loading import load_with_draft
from .resident_memory import give_back
from .scheduling.stopping import StopRules
from .tensor_parallel.leader import load_divided


def assemble(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a model's folder, ready to run; raises ModelError or ConfigError."""
    give_back()  # before the weights are loaded
    if config.tensor_parallel > 1:
        loaded, draft_runner = load_divided(config, folder), None
    else:
        loaded, draft_runner = load_with_draft(config, folder)
    info = loaded.info
    stop_rules = StopRules.load(folder, info.eos_token_ids)
    grammars = (
        GrammarCompiler(folder, info.vocab_size, info.eos_token_ids) if stop_rules.tokenizer is not None else None
    )
    give_back()
    return LLMEngine(
        loaded.runner,
        loaded.info,
        config,
        stop_rules,
        draft_runner=draft_runner,
        adapter_slots=loaded.adapter_slots,
        grammars=grammars,
    )

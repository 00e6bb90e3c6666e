"""millrace's own engine, loaded: the back end `torch`."""

from __future__ import annotations

import os
from pathlib import Path

from ..wire.config import ModelConfig
from ..wire.imports import importing
from .interface import Engine


def import_engine() -> None:
    """Import what an engine needs whatever its model is: seconds. Touches no device, starts no thread of torch."""
    # Read when torch loads its OpenMP. Threads that spin while they wait starve those they wait for as soon as another
    # process wants a core, and Beam's workers do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with importing():
        from . import engine  # noqa: F401
        from .loading import model_loader  # noqa: F401
        from .tensor_parallel import leader  # noqa: F401


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a model's folder, ready to run; raises ModelError or ConfigError."""
    import_engine()  # before the imports below, which find its modules there
    from ..grammars.compiling import GrammarCompiler
    from .engine import LLMEngine
    from .loading.model_loader import load_with_draft
    from .scheduling.stopping import StopRules
    from .tensor_parallel.leader import load_divided
    from .this_process import give_back

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
        info,
        config,
        stop_rules,
        draft_runner=draft_runner,
        adapter_slots=loaded.adapter_slots,
        grammars=grammars,
    )

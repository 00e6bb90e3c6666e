"""What models, engines, jobs and processes are and have come to, as messages tell it."""

from __future__ import annotations

import msgspec


class ModelInfo(msgspec.Struct, frozen=True):
    """What a loaded model is and can hold, as the engine found it."""

    name: str
    folder: str
    architecture: str
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    eos_token_ids: list[int]
    load_seconds: float
    quantization: str = "none"
    """What the weights of linear layers are held in, if not in dtype: int8, int4 or fp8."""
    kv_cache_dtype: str = ""
    """What keys and values are held in; empty of an engine that holds none."""
    revision: str = ""
    """Which contents of that name (store/revisions.py)."""


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of an engine, counters since its start."""

    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    """Computed on a guess (speculative decoding)."""
    accepted_tokens: int = 0
    """Of those, the ones that turned out right and saved a step."""
    tokens_per_s: float = 0.0
    """Generated tokens a second over the last few seconds."""
    rss_mb: float = 0.0


class JobStatus(msgspec.Struct, frozen=True):
    """What one job's requests have come to so far."""

    job: str
    finished: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class ModelStatus(msgspec.Struct, frozen=True):
    """One model as the manager sees it."""

    key: str
    model: str
    state: str
    """idle (unloaded until the next request), loading, ready, restarting or failed."""
    pids: list[int]
    """Of its engines that run."""
    clients: int
    restarts: int
    outstanding: int
    """Requests accepted and not yet answered."""
    info: ModelInfo | None
    stats: EngineStats
    """Of all its engines together."""
    revision: str = ""
    """Which contents of that name (store/revisions.py)."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process that takes part: `role` is manager, engine or client."""

    pid: int
    role: str
    model: str = ""

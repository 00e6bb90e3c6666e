"""The status of models, engines, jobs and processes, as messages carry it."""

from __future__ import annotations

from typing import Literal

import msgspec

from .request_counts import RequestCounts

Source = Literal["server_answers", "job"]
"""Whom the manager answered: a `millrace serve`, once for each answer of an HTTP request, or anyone else."""


class ModelInfo(msgspec.Struct, frozen=True):
    """What a loaded model is and can hold, as the engine found it."""

    name: str
    """Name of the model, as it was given."""
    folder: str
    """Folder of its files on this machine."""
    architecture: str
    """The config's architecture."""
    dtype: str
    """Format of weights and activations."""
    device: str
    """`cpu` or `cuda`."""
    vocab_size: int
    """Tokens that the model knows."""
    max_model_len: int
    """Most tokens of a prompt and its answer."""
    max_num_seqs: int
    """Most requests that run at once."""
    eos_token_ids: list[int]
    """Tokens that end an answer."""
    load_seconds: float
    """Seconds that loading took."""
    num_blocks: int = 0
    """Blocks of KV cache; 0 for an engine that tells none."""
    block_size: int = 0
    """Tokens of a block; 0 for an engine that tells none."""
    quantization: str = "none"
    """Format of the weights of linear layers, if not dtype: int8, int4 or fp8."""
    kv_cache_dtype: str = ""
    """Format of keys and values; empty for an engine that holds none."""
    revision: str = ""
    """Contents of the model (store/revisions.py)."""
    chat: bool = False
    """True if an engine that takes text reads it as one user turn, unless the client says otherwise."""
    cache_bytes: int = 0
    """Bytes of KV cache as it was loaded; 0 for an engine whose KV cache cannot change its size while it runs."""
    is_cut: bool = False
    """Whether memory was too little for `max_model_len` or `max_num_seqs` as the model and the settings have them."""


class EngineTotals(msgspec.Struct, frozen=True):
    """What an engine has counted since its start; of a model's engines, over their restarts too."""

    steps: int = 0
    """Steps of the engine."""
    preemptions: int = 0
    """Times that a running request was put back to wait."""
    prompt_tokens: int = 0
    """Tokens of prompts."""
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused."""
    generated_tokens: int = 0
    """Generated tokens."""
    drafted_tokens: int = 0
    """Tokens that speculative decoding drafted."""
    accepted_tokens: int = 0
    """Drafted tokens that were right, and saved a step."""
    grammars_compiled: int = 0
    """Constraints that were compiled, refused ones included; 0 for an engine that tells none."""
    grammar_seconds: float = 0.0
    """Seconds that the compilations took, on threads beside the engine's loop."""
    grammar_hits: int = 0
    """Requests whose constraint was compiled already, for an earlier request."""


class EngineStats(EngineTotals, frozen=True, kw_only=True):
    """A snapshot of an engine, beside what it has counted."""

    running: int = 0
    """Requests that run at this moment, which may lie between two steps."""
    waiting: int = 0
    """Requests that wait."""
    blocks_used: int = 0
    """Blocks of KV cache in use at this moment."""
    blocks_total: int = 0
    """Blocks of KV cache."""
    tokens_per_s: float = 0.0
    """Generated tokens a second over the last few seconds."""
    batch: float = 0.0
    """Requests of a step, on average over the same seconds."""
    blocks_held: float = 0.0
    """Blocks of KV cache in use at a step, on average over the same seconds."""
    rss_mb: float = 0.0
    """Memory of the engine's processes, in MB."""


class JobStatus(msgspec.Struct, frozen=True):
    """What one job's requests have come to so far."""

    job: str
    """Id of the job."""
    finished: int = 0
    """Requests that finished."""
    failed: int = 0
    """Requests that failed."""
    prompt_tokens: int = 0
    """Tokens of prompts; of scores and labels, of each continuation with its prompt."""
    cached_tokens: int = 0
    """Prompt tokens whose KV cache was reused."""
    generated_tokens: int = 0
    """Generated tokens."""
    failures: dict[str, int] = {}
    """Failed requests by the classes of their errors."""
    weight: float = 1.0
    """Its share of a model's tokens beside other jobs, as `--weight` says."""


class ModelStatus(msgspec.Struct, frozen=True):
    """One model as the manager sees it."""

    key: str
    """Names the model and the settings that its answers depend on; `millrace stop` takes it."""
    model: str
    """Name of the model: as it was given, without a slash at its end."""
    state: str
    """idle (unloaded until the next request), waiting (for room in memory), loading, ready, restarting or failed."""
    pids: list[int]
    """Process ids of its engines."""
    clients: int
    """Worker processes that use it."""
    restarts: int
    """Times that an engine was started again."""
    outstanding: int
    """Requests accepted and not yet answered."""
    info: ModelInfo | None
    """What was loaded; null until then."""
    stats: EngineStats
    """Sums over all its engines."""
    revision: str = ""
    """Contents of the model (store/revisions.py)."""
    waits_for: str = ""
    """What a model that waits lacks, and which models have it."""
    loads: int = 0
    """Times that the model was loaded."""
    credits_given: int = 0
    """Requests that its clients may have outstanding, all together."""
    credits_used: int = 0
    """Requests that its clients have outstanding; one that two clients wait for counts twice."""
    requests: dict[str, RequestCounts] = {}
    """Requests that were answered, by who sent them: server_answers (`millrace serve`, one for each answer of an HTTP
    request) or job (anyone else). A newer manager may know others.
    """


class EndedModel(msgspec.Struct, frozen=True):
    """What is left of a model that nobody uses any more: its counters. They go on if it is opened again."""

    key: str
    """As in ModelStatus."""
    model: str
    """Name of the model: as it was given, without a slash at its end."""
    restarts: int
    """Times that an engine was started again."""
    stats: EngineTotals
    """Sums over all its engines."""
    requests: dict[str, RequestCounts]
    """As in ModelStatus."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """A process that takes part: `role` is manager, engine or client."""

    pid: int
    """Process id."""
    role: str
    """`manager`, `engine` or `client`."""
    model: str = ""
    """Model of an engine or client."""
    host: str = ""
    """Host of a process of another container, whose process ids mean nothing here; empty for this machine's."""

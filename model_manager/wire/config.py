"""Settings of a model's engine and of the manager, parsed once at the edge; frozen, and the same in every process.

Neither knows where it came from (flags, a notebook, a message).
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from .address import parse_address
from .backends import BACKENDS, backend_names
from .conversion import SettingsMeta, check, check_types, converted, did_you_mean, nearest, unknown
from .errors import ConfigError

EMBEDDED_MODEL = "millrace-tiny"

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4", "fp8"]
KvCacheDtype = Literal["auto", "int8", "fp8"]
Option = str | int | float | bool
"""A value of a back end's option."""
SpeculationMethod = Literal["off", "prompt_lookup", "draft_model"]


SHARED_SETTINGS = (
    *("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_gib", "num_threads", "num_engines"),
    *("tensor_parallel", "prefix_caching", "speculation", "num_speculative_tokens", "draft_model"),
    *("max_loras", "max_lora_rank", "pinned"),
)
"""Fields of ModelConfig that are not in its key: all users of a model share the values of the first one."""
SETTINGS_ELSEWHERE = {
    "batch_size": "max_num_seqs",
    "max_batch_size": "max_num_seqs",
    "gpu_memory_utilization": "kv_cache_gib",
    "tensor_parallel_size": "tensor_parallel",
    "data_parallel_size": "num_engines",
    "max_context_len": "max_model_len",
    "torch_dtype": "dtype",
    "enable_prefix_caching": "prefix_caching",
    "num_lookahead_tokens": "num_speculative_tokens",
}
"""Settings of a ModelConfig by the names that vLLM, transformers and others have for them."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=SettingsMeta):
    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Read plain values. Raises ConfigError that names an unknown setting, a wrong type or an impossible value."""
        return converted(fields, cls, ConfigError, what=f"setting of {cls.__name__}", near=cls._nearest)

    @classmethod
    def _nearest(cls, name: str) -> str | None:
        """The setting that was probably meant by a name that is none: misspelt, or another program's."""
        meant = SETTINGS_ELSEWHERE.get(name)
        return meant if meant in cls.__struct_fields__ else nearest(name, cls.__struct_fields__)


def model_name(model: str) -> str:
    """A model as users are told of it: the same with and without a slash at the end of a folder."""
    return model.rstrip("/")


class ModelConfig(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how its inference process is to run it.

    Raises ConfigError, naming the setting, for a value outside its range.
    """

    model: str = EMBEDDED_MODEL
    """A hub name (`org/name`), a folder, `gs://bucket/folder`, or `millrace-tiny`, the embedded demo model; for
    llama.cpp a GGUF file (`x.gguf`, `org/name/x.gguf`, `gs://bucket/folder/x.gguf`)."""
    revision: str | None = None
    """Branch, tag or commit of a hub name. A client replaces it by the commit that it found."""
    dtype: Dtype = "auto"
    """Type of weights, activations and KV cache; auto takes the checkpoint's if the processor computes it fast."""
    quantization: Quantization = "none"
    """Format that the weights of linear layers are rounded to at load (docs: Quantization)."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Format of keys and values in the KV cache; auto keeps them in dtype."""
    device: Device = "auto"
    """Device that runs the model. auto: with torch cuda if there is a GPU, else cpu; others choose by themselves."""
    max_model_len: int | None = None
    """Most tokens of prompt and output together. Default: the model's own limit."""
    max_num_seqs: int = 64
    """Most sequences that run at once."""
    max_num_batched_tokens: int = 512
    """Most tokens, prefill and decode together, that one step computes."""
    block_size: int = 16
    """Tokens per block of the KV cache."""
    kv_cache_gib: float | None = None
    """Size of the KV cache in GiB. Default: what the free memory allows."""
    num_threads: int | None = None
    """Threads that the engine computes with on a CPU. Default: OMP_NUM_THREADS of its manager, else all cores."""
    num_engines: int | None = None
    """Inference processes that share the requests. Default: one for every `tensor_parallel` GPUs; on a CPU, one."""
    tensor_parallel: int = 1
    """Processes of one engine, each on a GPU of its own. They divide the model's weights and the KV cache."""
    prefix_caching: bool = True
    """Reuse the KV cache of a prefix that another request has computed."""
    speculation: SpeculationMethod = "off"
    """Guess tokens and check several per step. Output does not change. prompt_lookup guesses from the sequence's own
    text, draft_model with a smaller model (docs: Speculative decoding)."""
    num_speculative_tokens: int = 2
    """Most tokens guessed for a sequence per step. The engine guesses fewer, or none, if guessing does not pay."""
    draft_model: str | None = None
    """Smaller model with the same vocabulary, named like --model. Used by --speculation draft_model."""
    max_loras: int = 0
    """Most LoRA adapters loaded at once; 0: no request can name one. On a CPU a model that takes adapters runs
    through transformers' code (docs: LoRA adapters)."""
    max_lora_rank: int = 64
    """Highest rank of an adapter. Memory for max_loras adapters of this rank is left free beside the KV cache."""
    pinned: bool = False
    """Keep the model loaded while any client uses it: it is not unloaded when idle, nor to make room for another."""
    backend: str = "torch"
    """Engine that runs the model; torch is millrace's own (docs: Engines; `millrace engines` lists all)."""
    backend_options: dict[str, Option] = {}
    """Options of another engine, under that engine's own names."""
    backend_python: str | None = None
    """Python that runs another engine. Default: the one that `millrace engines install` set up."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        named = bool(self.model.strip()) and "\0" not in self.model
        check("model", self.model, named, "a hub name, a folder or gs://bucket/folder")
        check("max_model_len", self.max_model_len, self.max_model_len is None or self.max_model_len >= 2, "2 or more")
        check("max_num_seqs", self.max_num_seqs, 1 <= self.max_num_seqs <= 4096, "1 to 4096")
        batched = self.max_num_batched_tokens
        check("max_num_batched_tokens", batched, batched >= self.max_num_seqs, f"max_num_seqs ({self.max_num_seqs}) up")
        check("block_size", self.block_size, self.block_size in (8, 16, 32, 64, 128), "8, 16, 32, 64 or 128")
        gib = self.kv_cache_gib
        check("kv_cache_gib", gib, gib is None or 0 < gib < math.inf, "a finite number above 0")
        check("num_engines", self.num_engines, self.num_engines is None or 1 <= self.num_engines <= 64, "1 to 64")
        check("tensor_parallel", self.tensor_parallel, 1 <= self.tensor_parallel <= 64, "1 to 64")
        check("num_threads", self.num_threads, self.num_threads is None or self.num_threads >= 1, "1 or more")
        check("max_loras", self.max_loras, 0 <= self.max_loras <= 1024, "0 (no adapters) to 1024")
        check("max_lora_rank", self.max_lora_rank, 1 <= self.max_lora_rank <= 1024, "1 to 1024")
        divided = self.max_loras and self.tensor_parallel > 1
        check("max_loras", self.max_loras, not divided, f"0 beside tensor_parallel={self.tensor_parallel}")

        self._check_backend()
        guesses = self.num_speculative_tokens
        check("num_speculative_tokens", guesses, 1 <= guesses <= 16, "1 to 16")
        draft, asked = self.draft_model, self.speculation == "draft_model"
        if asked and draft is None:
            raise ConfigError("speculation='draft_model': takes a model in draft_model too (--draft_model NAME)")
        if draft is not None and not asked:
            raise ConfigError(
                f"draft_model={draft!r}: takes a model only with speculation=draft_model (--speculation draft_model)"
            )
        check("draft_model", draft, draft is None or bool(draft.strip()), "a hub name, a folder or gs://bucket/folder")

    def _check_backend(self) -> None:
        """Another engine obeys fewer settings, and has options of its own."""
        if self.backend not in BACKENDS:
            hint = did_you_mean(nearest(self.backend, BACKENDS), f"takes one of {backend_names()}")
            raise ConfigError(f"backend={self.backend!r}{hint}")
        backend = BACKENDS[self.backend]
        for field in msgspec.structs.fields(self):
            name, value = field.name, getattr(self, field.name)
            at_default = value == (field.default_factory() if field.default is msgspec.NODEFAULT else field.default)
            if not at_default:
                backend.check_setting(name, value)
        for name in self.backend_options:
            if backend.options is not None and name not in backend.options:
                what = f"option of the back end {self.backend}"
                told = unknown(name, backend.options, what=what) if backend.options else _no_option(name)
                raise ConfigError(f"backend_options: {told}")
        if self.backend_python is not None and not backend.packages:
            others = ", ".join(each.name for each in BACKENDS.values() if each.packages)
            raise ConfigError(
                f"backend_python={self.backend_python!r}: the back end {self.backend} runs in millrace's own Python;"
                f" leave it out, or name one of {others} as backend (--backend)"
            )

    def for_task(self, task: str) -> Self:
        """The settings as a task needs them: vLLM loads a model for embeddings otherwise than for text."""
        options = {**BACKENDS[self.backend].task_options.get(task, {}), **self.backend_options}
        return msgspec.structs.replace(self, backend_options=options)

    @property
    def name(self) -> str:
        """The model as users are told of it."""
        return model_name(self.model)

    @property
    def key(self) -> str:
        """The same engines serve all of one key: the model and the settings that change what it answers.

        SHARED_SETTINGS are not in it: who comes later shares what the first one started, and is told where that differs
        from what they asked for.
        """
        formats = (self.dtype, self.quantization, self.kv_cache_dtype)
        ranks = self.max_lora_rank if self.max_loras else 0  # adapters change which code computes
        engine = (self.backend, sorted(self.backend_options.items()), self.backend_python)
        identity = (self.name, self.revision, *formats, self.device, self.max_model_len, ranks, *engine)
        digest = hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:12]
        return f"{self.name.rsplit('/', 1)[-1]}-{digest}"


class ManagerConfig(_Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the manager watches engines and clients; all times in seconds."""

    linger: float = 5.0
    """How long the manager stays, with its models loaded, after its last client is gone."""
    idle_timeout: float = 600.0
    """How long a model without a request stays loaded while clients are connected."""
    heartbeat: float = 1.0
    """How often engines and clients send a heartbeat."""
    hang_timeout: float = 10.0
    """An engine that is silent for this long is killed and replaced."""
    step_timeout: float = 300.0
    """An engine that sends heartbeats, but ends no step for this long, is killed and replaced."""
    load_timeout: float = 1800.0
    """How long a model may take to load."""
    max_restarts: int = 3
    """How often an engine may be restarted in a row with no request finished between; then the model is given up."""
    max_deaths_per_request: int = 2
    """A request fails after it was running at more than this many engine deaths in a row."""
    max_manager_losses: int = 5
    """How often a worker may lose the manager in a row with no result between; then its requests fail. Each job decides
    it for itself."""
    orphan_grace: float = 10.0
    """How long the requests of a dead client go on, and its model stays loaded, so that a retry or `--resume` can take
    them over. A job that writes files, or runs on Flink or Dataflow, asks for 120. The manager gives what is asked, up
    to its results_kept, and never less than its own orphan_grace."""
    weight: float = 1.0
    """Share of this job beside others that use the same engines or memory: one of weight 2 gets twice the tokens of one
    of weight 1, however many workers each has (docs: Many models)."""
    results_kept: float = 600.0
    """How long a finished result is kept for a retry that asks for it again."""
    results_kept_mib: float = 64.0
    """Memory for finished results that are kept, in MiB."""
    lookahead: float = 1.0
    """Requests that clients may send beyond what an engine runs at once, as a fraction of that number."""
    memory_gib: float | None = None
    """Memory for the weights, KV caches and engines of all models together, in GiB: of the machine, and of each GPU.
    Default: the machine's free memory when the manager starts, and the whole memory of each GPU."""
    manager: str = ""
    """Running manager to use: its address `tcp://HOST:PORT`, or its runtime folder `unix:FOLDER`. Default:
    MILLRACE_MANAGER, else this machine's manager, which the first client starts (docs: Kubernetes)."""
    manager_key_file: str = ""
    """File with the key of a manager at tcp://. Default: MILLRACE_MANAGER_KEY_FILE."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        if self.manager:
            parse_address(self.manager, "manager")
        for name in ("linger", "idle_timeout", "orphan_grace", "results_kept", "results_kept_mib", "lookahead"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < math.inf, "a finite number of 0 or more")
        for name in ("heartbeat", "hang_timeout", "step_timeout", "load_timeout"):
            check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a finite number above 0")
        check("weight", self.weight, 0.001 <= self.weight <= 1000, "0.001 to 1000")
        gib = self.memory_gib
        check("memory_gib", gib, gib is None or 0 < gib * 2**30 < math.inf, "a finite number above 0")
        for name in ("max_restarts", "max_deaths_per_request", "max_manager_losses"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < 2**63, "0 or more, of 63 bits")


PLACE_SETTINGS = ("manager", "manager_key_file")
"""Fields of ManagerConfig that say where the manager is, and not how it works."""
OWN_SETTINGS = ("orphan_grace", "weight", "max_manager_losses")
"""Fields of ManagerConfig that each client decides for itself."""


def runtime_dir() -> Path:
    """The folder of the manager's socket and lock: `MILLRACE_RUNTIME_DIR`, else one of this user's on this machine."""
    named = os.environ.get("MILLRACE_RUNTIME_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"


def cache_folder() -> Path:
    """Where a machine keeps fetched files and what it found out about them: `MILLRACE_CACHE_DIR`, else
    ~/.cache/millrace.
    """
    named = os.environ.get("MILLRACE_CACHE_DIR")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "millrace"


def _no_option(name: str) -> str:
    meant = nearest(name, ModelConfig.__struct_fields__)
    setting = f"the setting {meant} (--{meant})" if meant else None
    hint = did_you_mean(setting, "name another engine as backend (--backend)")
    return f"{name}: millrace's own engines take no such options{hint}"

"""Loads a GGUF file into llama.cpp's server. Knows how many requests may run at once; not what a request is."""

from __future__ import annotations

import logging
import os
import re
import secrets
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.interface import Engine
from ...store.gguf import GgufHeader, gguf_bytes, gguf_files, is_gguf, read_gguf
from ...store.memory import SHARE_OF_MACHINE
from ...wire.config import ModelConfig
from ...wire.errors import ConfigError, ModelDoesNotFit, ModelLoadFailed, ModelUnsupported
from ...wire.machine import free_memory
from ...wire.status import ModelInfo
from ..model_info import info_of
from .engine import LlamaCppEngine
from .exchange import LlamaServer
from .options import apply_options, cache_bytes

log = logging.getLogger(__name__)

_FILE_TYPES = dict(enumerate("f32 f16 q4_0 q4_1 - - - q8_0 q5_0 q5_1 q2_k q3_k_s q3_k_m q3_k_l q4_k_s q4_k_m".split()))
_FILE_TYPES |= {16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 24: "iq1_s", 25: "iq4_nl", 30: "iq4_xs", 32: "bf16"}
"""The format of most of a file's weights, by its `general.file_type`."""
_LEAST_LENGTH = 256
"""llama.cpp rounds the positions of a slot up to a multiple of this."""
_REASON = re.compile(r" E .*?: (?:error loading model: )?(.*)")


@dataclass(frozen=True)
class Slots:
    """What runs at once."""

    count: int
    length: int
    """Positions of each: prompt and output together."""
    is_cut: bool = False
    """See ModelInfo."""


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a GGUF file. Raises ModelUnsupported for another file, ModelCorrupt, ModelDoesNotFit, ConfigError
    for an option, and ModelLoadFailed with what llama.cpp says.
    """
    started = time.monotonic()
    if not is_gguf(config.model):
        raise ModelUnsupported(f"--model {config.model}: the back end llama_cpp takes a GGUF file, x.gguf")
    first, *_ = gguf_files(config.model, folder)
    header = read_gguf(first)
    library = _library()
    free = _free_memory(library, config) - gguf_bytes(config.model, folder)
    slots = planned_slots(config, header, free)
    key = secrets.token_hex()
    params = _params(library, config, first, slots, key)
    try:
        native = library.Server(params)
    except RuntimeError:
        raise ModelLoadFailed(f"llama.cpp: {_reason(library, params)}") from None
    info = _info(config, folder, header, slots, started)
    return LlamaCppEngine(info, LlamaServer(native, key, slots.length, config.prefix_caching))


def _library() -> Any:
    """xllamacpp; raises ModelLoadFailed where it cannot be imported, which takes the system's OpenMP."""
    # Read when OpenMP is loaded. Threads that spin while they wait (ACTIVE) starve other processes when cores are few.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import xllamacpp
    except ImportError as error:
        raise ModelLoadFailed(f"xllamacpp cannot be imported: {error} (Debian has libgomp1 for libgomp.so.1)") from None
    return xllamacpp


def _free_memory(library: Any, config: ModelConfig) -> int:
    """Bytes for weights and KV cache: of the GPUs, if it computes there, else of the machine."""
    kind = library.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU
    gpus = [each["memory_free"] for each in library.get_device_info() if each["type"] == kind]
    if config.device == "cuda" and not gpus:
        raise ConfigError(
            "device='cuda': this build of llama.cpp finds no GPU; --backend_python names an environment with another"
            " (docs/how-to/gguf.md in millrace's repository)"
        )
    on_cpu = config.device == "cpu" or config.backend_options.get("n_gpu_layers") == 0
    return sum(gpus) if gpus and not on_cpu else free_memory()


def planned_slots(config: ModelConfig, header: GgufHeader, free: int) -> Slots:
    """How many requests run at once, and how long they may be: at most max_num_seqs, with their keys and values within
    kv_cache_gib or a share of `free` bytes. Raises ConfigError or ModelDoesNotFit.
    """
    positions = int(header.of_model("context_length", 0)) or 2**20
    length = config.max_model_len or positions
    stretched = any(name.startswith(("rope", "yarn")) for name in config.backend_options)
    if length > positions and not stretched:
        raise ConfigError(f"max_model_len={length}: takes at most {positions}, the positions of the model")
    length = _rounded(length)
    room = int(config.kv_cache_gib * 2**30 if config.kv_cache_gib is not None else SHARE_OF_MACHINE * free)
    most = max(0, room) // max(1, int(_bytes_per_token(config, header)))
    given = config.backend_options.get("n_ctx")
    if given is not None and (type(given) is not int or given < 1):
        raise ConfigError(f"backend_options: n_ctx={given!r}: takes a number of positions, 1 or more")
    if given is not None:
        most = int(given)
    if most < (length if config.max_model_len else _LEAST_LENGTH):
        raise ModelDoesNotFit(
            f"the KV cache has room for {most} tokens, and one request takes {length}: lower max_model_len, or raise"
            " kv_cache_gib or n_ctx"
        )
    count = max(1, min(config.max_num_seqs, most // length))
    if count < config.max_num_seqs:
        log.warning(
            "%d requests run at once, not max_num_seqs=%d: each reserves %d positions, and the KV cache has room for %d"
            " (max_model_len, kv_cache_gib)",
            *(count, config.max_num_seqs, min(length, most), most),
        )
    held = length if most >= length else most // _LEAST_LENGTH * _LEAST_LENGTH
    return Slots(count, held, is_cut=(count, held) != (config.max_num_seqs, length))


def _rounded(length: int) -> int:
    return -(-length // _LEAST_LENGTH) * _LEAST_LENGTH


def _bytes_per_token(config: ModelConfig, header: GgufHeader) -> float:
    """Bytes of a token's keys and values in all layers; a model with windows or states takes less."""
    layers = int(header.of_model("block_count", 0))
    heads = header.of_model("attention.head_count", 0)
    kv_heads = header.of_model("attention.head_count_kv", heads)
    in_all = sum(kv_heads) if isinstance(kv_heads, list) else layers * int(kv_heads)
    most = max(heads) if isinstance(heads, list) else int(heads)
    width = int(header.of_model("embedding_length", 0)) // max(1, most)
    default = _cache_type(config)
    key = int(header.of_model("attention.key_length", width)) * cache_bytes(
        config.backend_options, "cache_type_k", default
    )
    value = int(header.of_model("attention.value_length", width)) * cache_bytes(
        config.backend_options, "cache_type_v", default
    )
    return in_all * (key + value)


def _cache_type(config: ModelConfig) -> str:
    if config.kv_cache_dtype == "fp8":
        raise ConfigError("kv_cache_dtype='fp8': the back end llama_cpp takes auto (float16) and int8 (q8_0)")
    return "q8_0" if config.kv_cache_dtype == "int8" else "f16"


def _params(library: Any, config: ModelConfig, path: Path, slots: Slots, key: str) -> Any:
    threads = config.num_threads or len(os.sched_getaffinity(0))
    params = library.CommonParams()
    params.model.path = str(path)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = max(config.max_num_batched_tokens, slots.count)
    params.cache_prompt = config.prefix_caching
    params.cache_ram_mib = 0  # its own default keeps prompts in up to 8 GiB
    if config.device == "cpu":
        params.n_gpu_layers = 0
    kept = {name: value for name, value in config.backend_options.items() if name != "n_ctx"}
    cache = dict.fromkeys(("cache_type_k", "cache_type_v"), _cache_type(config))
    apply_options(library, params, {**cache, **kept})
    params.n_parallel, params.n_ctx = slots.count, slots.count * slots.length
    params.n_threads_http = slots.count + 2
    params.api_keys = [key]  # its port is open to every user of this machine
    params.ui = params.endpoint_slots = False
    params.verbosity = int(config.backend_options.get("verbosity", 0))
    return params


def _reason(library: Any, params: Any) -> str:
    """What llama.cpp says of a model that it does not load: in its log, so it is asked to load it again with one."""
    params.verbosity = 1
    with tempfile.TemporaryFile() as said:
        before = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            library.Server(params)
        except RuntimeError:
            pass
        finally:
            os.dup2(before, 2)
            os.close(before)
        said.seek(0)
        found = _REASON.search(said.read().decode("utf-8", "replace"))
    return found[1] if found else "the model cannot be loaded"


def _info(config: ModelConfig, folder: Path, header: GgufHeader, slots: Slots, started: float) -> ModelInfo:
    eos = header.fields.get("tokenizer.ggml.eos_token_id")
    tokens = header.fields.get("tokenizer.ggml.tokens", 0)
    return info_of(
        config,
        folder,
        started,
        architecture=str(header.fields.get("general.architecture", "")),
        dtype=_FILE_TYPES.get(header.fields.get("general.file_type", -1), "gguf"),
        device="cpu" if config.device == "cpu" else "auto",
        vocab_size=tokens if isinstance(tokens, int) else len(tokens),
        max_model_len=slots.length,
        max_num_seqs=slots.count,
        eos_token_ids=[] if eos is None else [int(eos)],
        kv_cache_dtype=_cache_type(config),
        chat="tokenizer.chat_template" in header.fields,
        is_cut=slots.is_cut,
    )

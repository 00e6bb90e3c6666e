"""CTranslate2 behind our loop: its models, and the options and limits of its Generator.

It has no continuous batching: ctranslate2_batches.py makes batches. A folder of CTranslate2's own format (model.bin) is
loaded as it is; another model is converted at its first load, and kept. Options of `backend_options` are arguments of
its Generator.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec

from ..engine.interface import Engine
from ..engine.scheduling.stopping import StopRules
from ..store.contents import is_in_format
from ..wire.config import Dtype, ModelConfig, Option
from ..wire.errors import ConfigError, ModelLoadFailed, one_line
from .converted_models import converted_model, run_converter
from .ctranslate2_batches import BatchedGenerator
from .engine_options import in_range, of_type
from .hosted import HostedEngine
from .model_info import computing_dtype, declared_dtype, eos_token_ids, info_of, longest, read_json

_UNLIMITED = 10**9
"""From here on, a tokenizer's `model_max_length` means that there is none."""
_CONVERT = "import sys; from ctranslate2.converters.transformers import main; main()"
_MOST_ON_CPU = 32
"""Requests of a batch on a CPU: 16 gave a tenth fewer tokens a second, and 96 prompts of equal length half as many."""
_ALLOCATION = ((-8, 1), (-4, 0), (-1, 2**31 - 1))
"""Options of glibc's malloc, by their numbers (malloc.h): M_ARENA_MAX, M_MMAP_MAX and M_TRIM_THRESHOLD. One heap, which
keeps what is freed.
"""
_OPTION_DEFAULTS = {
    "device_index": 0,
    "inter_threads": 1,
    "flash_attention": False,
    "tensor_parallel": False,
}
_OPTION_RANGES = {"device_index": (0, 2**31 - 1), "inter_threads": (1, 1024)}
"""The least and the largest value of each option that is a number."""


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a folder, which CTranslate2 runs; raises ModelLoadFailed where it cannot convert the model."""
    import ctranslate2

    _keep_freed_memory()
    started = time.monotonic()
    options = {name: _option(name, value) for name, value in config.backend_options.items()}
    device = "cuda" if config.device == "cuda" else "cpu"
    try:
        supported = ctranslate2.get_supported_compute_types(device)
    except RuntimeError as error:
        raise ConfigError(f"device={config.device!r}: CTranslate2: {one_line(error)}") from error
    made = _as_it_is if is_in_format(folder, "ctranslate2") else _of_checkpoint
    model = made(config, folder, supported)
    at_once = int(options.get("inter_threads", 1))
    try:
        generator = ctranslate2.Generator(
            str(model.folder),
            device=device,
            compute_type=model.compute_type,
            intra_threads=max(1, (config.num_threads or len(os.sched_getaffinity(0))) // at_once),
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelLoadFailed(f"{config.model}: CTranslate2: {one_line(error)}") from error
    quantization, _, dtype = generator.compute_type.rpartition("_")
    info = info_of(
        config,
        folder,
        started,
        architecture=model.architecture,
        dtype=dtype,
        device=generator.device,
        vocab_size=len(model.vocabulary),
        max_model_len=model.max_len,
        eos_token_ids=model.eos,
        quantization=quantization or "none",
    )
    most = min(config.max_num_seqs, _MOST_ON_CPU) if generator.device == "cpu" else config.max_num_seqs
    library = BatchedGenerator(generator, model.vocabulary, most, model.eos, at_once)
    return HostedEngine(info, library, StopRules.load(folder, model.eos))


def _keep_freed_memory() -> None:
    """Have malloc give no memory back to the kernel: each step frees all of a batch's KV cache and allocates a longer
    one, and the kernel took a fifth to a third of all processor time to clear the pages.
    """
    with suppress(AttributeError):  # a libc other than glibc
        set_option = ctypes.CDLL(None).mallopt
        for number, value in _ALLOCATION:
            set_option(number, value)


def _option(name: str, value: Option) -> Option:
    """The value, checked; raises ConfigError for one that CTranslate2 does not take."""
    checked = of_type(name, value, _OPTION_DEFAULTS[name])
    if name in _OPTION_RANGES:
        in_range(name, checked, *_OPTION_RANGES[name])
    return checked


@dataclass(frozen=True)
class _Model:
    """A folder in CTranslate2's format, and what is read from other files than its own."""

    folder: Path
    vocabulary: list[str]
    eos: list[int]
    compute_type: str
    max_len: int
    architecture: str = ""


def _of_checkpoint(config: ModelConfig, folder: Path, supported: Collection[str]) -> _Model:
    fields = read_json(folder / "config.json")
    dtype = _dtype(config, declared_dtype(fields), supported)
    found = _converted(config, folder, dtype)
    return _Model(
        found,
        _vocabulary(found),
        eos_token_ids(folder),
        compute_type=dtype if config.quantization == "none" else f"int8_{dtype}",
        max_len=longest(config, fields),
        architecture=next(iter(fields.get("architectures", [])), ""),
    )


def _dtype(config: ModelConfig, declared: str, supported: Collection[str]) -> str:
    """What it computes in, among its `supported` compute types: with int8 weights it pairs them with fewer types."""
    prefix = "" if config.quantization == "none" else f"{config.quantization}_"
    types = [dtype for dtype in get_args(Dtype) if f"{prefix}{dtype}" in supported]
    return computing_dtype(config, declared, types, "CTranslate2")


def _as_it_is(config: ModelConfig, folder: Path, supported: Collection[str]) -> _Model:
    """Its config.json is CTranslate2's own: the end-of-sequence token's text, and nothing of lengths."""
    vocabulary = _vocabulary(folder)
    eos = eos_token_ids(folder)
    ending = read_json(folder / "config.json").get("eos_token")
    if not eos and ending in vocabulary:
        eos = [vocabulary.index(ending)]
    declared = read_json(folder / "tokenizer_config.json").get("model_max_length")
    known = declared if isinstance(declared, int) and declared < _UNLIMITED else None
    if (longest := config.max_model_len or known) is None:
        raise ConfigError(
            f"max_model_len: {config.model} is in CTranslate2's format, and no file says how long it may be: set it"
        )
    given = config.dtype if config.dtype == "auto" else _dtype(config, config.dtype, supported)
    kept = given if given != "auto" else "default"
    quantized = "int8" if given == "auto" else f"int8_{given}"
    return _Model(folder, vocabulary, eos, kept if config.quantization == "none" else quantized, longest)


def _vocabulary(folder: Path) -> list[str]:
    return msgspec.json.decode((folder / "vocabulary.json").read_bytes(), type=list[str])


def _converted(config: ModelConfig, folder: Path, dtype: str) -> Path:
    from importlib.metadata import version

    weights = "int8" if config.quantization == "int8" else dtype

    def make(place: Path) -> None:
        arguments = ["--model", str(folder), "--output_dir", str(place), "--quantization", weights]
        run_converter(config, [sys.executable, "-c", _CONVERT, *arguments], "the conversion to CTranslate2's format")

    return converted_model(config, f"ctranslate2-{weights}-{version('ctranslate2')}", make)

"""A model's folder, checked before anything is loaded from it: architecture, weight files, sizes, formats.

Reads headers only, safetensors only, and never runs code that comes with a model.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...store.contents import weight_files
from ...store.memory import Weights
from ...wire.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from ..cpu.parameter_reader import ParameterShape
from ..quantization.stored_formats import refusal
from .architectures import refusal_of_type, served_architecture, text_part
from .config_sizes import check_config_sizes, check_depth, check_heads
from .kept_config import KeptConfig, PlainConfig

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_QUANTIZED = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
}
_ACTIVATIONS, _CHECKS = "transformers.activations", "transformers.utils.type_validators"
_MASK = re.compile(r"\.att(n|ention)\.(masked_)?bias$")
"""Buffers that older versions of transformers saved beside the weights (Pythia, GPT-2); newer versions make them anew.
"""


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds."""

    folder: Path
    architecture: str
    """The name of transformers' class."""
    config: Any
    """As transformers reads it, or its fields alone, as an earlier start kept them."""
    parameters: Mapping[str, tuple[Path, ParameterShape]]
    """File and shape of each."""
    stored_dtype: torch.dtype
    """The format of most weights; in a quantized checkpoint, of most weights that are not quantized."""
    stored_bytes: int
    quantization: dict[str, Any] | None
    """How its weights are quantized, as config.json says."""
    eos_token_ids: list[int]
    kept: KeptConfig
    """Where the config is kept for later starts."""
    is_text_part: bool
    """True if only the text part is served; `config` and `model_class` are then the text part's."""

    @cached_property
    def weights(self) -> Weights:
        """What the files hold."""
        numbers: Counter[bool] = Counter()
        for _, shape in self.parameters.values():
            numbers[len(shape) > 1] += math.prod(shape)
        return Weights(
            matrices=numbers[True],
            vectors=numbers[False],
            stored_bytes=self.stored_bytes,
            tied=self.config.vocab_size * self.config.hidden_size if self.config.tie_word_embeddings else 0,
            is_quantized=self.quantization is not None,
        )

    @property
    def most_parameters(self) -> int:
        """How many parameters the files can hold; in a quantized checkpoint one may take a quarter of a byte."""
        if self.quantization is not None:
            return 4 * self.stored_bytes
        return self.weights.matrices + self.weights.vectors

    @property
    def model_class(self) -> Any:
        """The model's class in transformers; importing it takes seconds."""
        import transformers

        return getattr(transformers, self.architecture)

    @cached_property
    def transformers_config(self) -> Any:
        """The config as the model's class takes it."""
        return _read_config(self.folder) if isinstance(self.config, PlainConfig) else self.config


def read_checkpoint(folder: Path) -> Checkpoint:
    """Check a model's folder; raises ModelNotFound, ModelCorrupt or ModelUnsupported, saying which file and why."""
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder} holds no config.json, so it is not a model's folder")
    try:
        kept = KeptConfig(folder)
    except OSError as error:
        raise ModelCorrupt(f"{folder / 'config.json'} is not readable: {_first_line(error)}") from None
    whole: Any = kept.read() or _read_config(folder)
    text = text_part(whole)
    config = text or whole
    architecture = _judged(folder, config)
    quantized = vars(whole).pop("quantization_config", None)  # or transformers would load the weights its own way
    if quantized and text:
        raise ModelUnsupported(f"{folder}: the text part of {whole.architectures[0]} is not served quantized")
    if quantized and (reason := refusal(quantized)):
        raise ModelUnsupported(f"{folder}: {reason}")
    formats = _DTYPES | (_QUANTIZED if quantized else {})
    parameters: dict[str, tuple[Path, ParameterShape]] = {}
    counts: Counter[torch.dtype] = Counter()
    for file in weight_files(folder):
        for name, (shape, dtype) in _read_header(file, formats).items():
            parameters[name] = file, shape
            counts[dtype] += math.prod(shape)
    checkpoint = Checkpoint(
        folder=folder,
        architecture=architecture,
        config=config,
        parameters=parameters,
        stored_dtype=max(_DTYPES.values(), key=lambda dtype: counts[dtype]),
        stored_bytes=sum(count * dtype.itemsize for dtype, count in counts.items()),
        quantization=quantized,
        eos_token_ids=_eos_token_ids(folder, whole),
        kept=kept,
        is_text_part=text is not None,
    )
    check_depth(folder / "config.json", config, checkpoint.most_parameters)
    return checkpoint


def _judged(folder: Path, config: Any) -> str:
    """The architecture of a config; raises for what is not served. A kept one was judged before."""
    if isinstance(config, PlainConfig):
        return str(config.architectures[0])
    architecture = served_architecture(config)
    check_heads(folder / "config.json", config)
    return architecture


def _read_config(folder: Path) -> Any:
    import_config_checks()
    import transformers

    check_config_sizes(folder / "config.json")
    try:
        return _plain(transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    except Exception as error:  # transformers raises whatever an odd value happens to break
        if any(words in str(error) for words in ("model type", "custom code")):
            raise ModelUnsupported(
                f"{folder}: transformers {transformers.__version__} knows no such model type, and no code of a "
                "model's own is run"
            ) from None
        if reason := _refusal_unread(folder / "config.json"):
            raise ModelUnsupported(reason) from None
        raise ModelCorrupt(f"{folder / 'config.json'} is not readable: {_first_line(error)}") from None


def import_config_checks() -> None:
    """Import transformers' checks of configs without its activations; does nothing if either is imported already.

    The check of an activation's name imports the activations, which import compilers and collectives. Where the model
    code is our own, this import takes longer than the rest of the start. Only configs of speech models need the check.
    """
    if _ACTIVATIONS in sys.modules or _CHECKS in sys.modules:
        return
    empty = ModuleType(_ACTIVATIONS)
    empty.ACT2FN = {}  # type: ignore[attr-defined]  # an empty table: no name is checked
    sys.modules[_ACTIVATIONS] = empty
    try:
        with contextlib.suppress(ImportError):  # of a transformers without this module; a config imports what it needs
            import_module(_CHECKS)
    finally:
        del sys.modules[_ACTIVATIONS]


def _plain(config: Any) -> Any:
    """The config without fields that make transformers return other or more outputs."""
    for part in (config, config.get_text_config(decoder=True)):
        part.return_dict, part.output_hidden_states = True, False
    return config


def _refusal_unread(file: Path) -> str | None:
    """Why a model with a config that transformers cannot read is not served; None if the reason is another."""
    try:
        model_type = json.loads(file.read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return refusal_of_type(str(model_type))


def _read_header(file: Path, formats: Mapping[str, torch.dtype]) -> dict[str, tuple[ParameterShape, torch.dtype]]:
    """Shape and format of each parameter; opening also checks that the file is as long as its header says."""
    found = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                if _MASK.search(name):
                    continue
                stored = tensors.get_slice(name)
                if stored.get_dtype() not in formats:
                    raise ModelUnsupported(f"{file}: {name} is stored as {stored.get_dtype()}; takes {[*formats]}")
                found[name] = tuple(stored.get_shape()), formats[stored.get_dtype()]
    except (SafetensorError, OSError) as error:
        raise ModelCorrupt(f"{file} is damaged: {_first_line(error)}") from None
    if not found:
        raise ModelCorrupt(f"{file} holds no weights")
    return found


def _eos_token_ids(folder: Path, config: Any) -> list[int]:
    """End-of-sequence ids from generation_config.json, where chat models correct them, else from the config."""
    eos = config.eos_token_id
    file = folder / "generation_config.json"
    if file.is_file():
        try:
            corrected = json.loads(file.read_bytes()).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelCorrupt(f"{file} is not readable: {_first_line(error)}") from None
        eos = eos if corrected is None else corrected
    if eos is None:
        return []
    tokens = [*eos] if isinstance(eos, list | tuple) else [eos]
    if not all(type(token) is int for token in tokens):
        raise ModelCorrupt(f"{file}: eos_token_id: takes an integer or a list of integers, got {str(eos)[:40]!r}")
    return tokens


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""OpenVINO GenAI behind our loop: its continuous batching, a step at a time, token ids in and out.

A folder of OpenVINO's own format (openvino_model.xml) is loaded as it is; another model is exported at its first load
by optimum-intel, and kept. Options of `backend_options` are the fields of its SchedulerConfig and the properties of the
device, such as ENABLE_CPU_PINNING.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.interface import Engine
from ..engine.scheduling.sequence import Sequence
from ..engine.scheduling.stopping import StopRules
from ..store.contents import is_in_format
from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig, Option
from ..wire.errors import ConfigError, InvalidRequest, ModelLoadFailed, one_line
from ..wire.sampling import SamplingParams
from .converted_models import converted_model, run_converter
from .engine_options import check_names, of_type
from .hosted import Event, HostedEngine
from .model_info import computing_dtype, declared_dtype, eos_token_ids, info_of, longest, read_json
from .openvino_constraints import CheckedOutputs, structured
from .single_floats import above_zero, below_one, cut, is_sampled

_CACHE_GIB = 4
"""GiB of KV cache, where nothing is said."""
_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_CAPABILITIES = {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}
"""A device's names for what it computes in."""
_WEIGHTS = {"float32": "fp32", "bfloat16": "fp16", "float16": "fp16"}
"""optimum's names for what weights are kept in. It has none for bfloat16, in which the device computes all the same."""
_OURS = {
    "cache_size": "kv_cache_gib",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "enable_prefix_caching": "prefix_caching",
    "INFERENCE_NUM_THREADS": "num_threads",
    "INFERENCE_PRECISION_HINT": "dtype",
    "KV_CACHE_PRECISION": "kv_cache_dtype",
}
"""Options that settings of ModelConfig decide, and these."""


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a folder, which OpenVINO GenAI runs; raises ConfigError for an option that it does not have."""
    import openvino
    import openvino_genai

    started = time.monotonic()
    core = openvino.Core()
    device = _device(config, core.available_devices)
    known = [*_fields(openvino_genai.SchedulerConfig()), *core.get_property(device, "SUPPORTED_PROPERTIES")]
    check_names(config.backend_options, known, "OpenVINO", decided=_OURS)
    fields, eos = read_json(folder / "config.json"), eos_token_ids(folder)
    capabilities = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
    supported = [dtype for dtype, name in _CAPABILITIES.items() if name in capabilities]
    dtype = computing_dtype(config, declared_dtype(fields), supported, "OpenVINO")
    as_it_is = is_in_format(folder, "openvino")
    found = _checked(config, folder) if as_it_is else _exported(config, folder, dtype)
    scheduler, properties = _scheduler(config, openvino_genai.SchedulerConfig()), _properties(config, dtype, as_it_is)
    try:
        pipeline = openvino_genai.ContinuousBatchingPipeline(str(found), scheduler, device, properties)
    except RuntimeError as error:
        raise ModelLoadFailed(f"{config.model}: OpenVINO: {one_line(error, 400)}") from error
    info = info_of(
        config,
        folder,
        started,
        architecture=next(iter(fields.get("architectures", [])), ""),
        dtype=dtype,
        device=device.lower(),
        vocab_size=int(fields["vocab_size"]),
        max_model_len=longest(config, fields),
        eos_token_ids=eos,
        quantization=config.quantization,
        kv_cache_dtype="" if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )
    outputs = CheckedOutputs(folder, info.vocab_size, eos)
    library = _OpenVino(pipeline, config.max_num_seqs, info.vocab_size, outputs)
    return HostedEngine(info, library, StopRules.load(folder, eos), outputs.meet, BACKENDS["openvino"].goes_on)


def _fields(scheduler: Any) -> list[str]:
    return [name for name in dir(scheduler) if not name.startswith("_") and not callable(getattr(scheduler, name))]


def _device(config: ModelConfig, available: list[str]) -> str:
    """OpenVINO's name for the device; raises ConfigError for a GPU that it does not find."""
    if config.device != "cuda":
        return "CPU"
    if not any(each.startswith("GPU") for each in available):
        raise ConfigError("device='cuda': OpenVINO finds no GPU that it can use on this machine: takes auto, cpu")
    return "GPU"


def _scheduler(config: ModelConfig, scheduler: Any) -> Any:
    scheduler.cache_size = int(config.kv_cache_gib or _CACHE_GIB)  # the field takes whole GiB
    scheduler.max_num_seqs = config.max_num_seqs
    scheduler.max_num_batched_tokens = config.max_num_batched_tokens
    scheduler.enable_prefix_caching = config.prefix_caching
    for name, value in config.backend_options.items():
        if name.islower():
            _set(scheduler, name, value)
    return scheduler


def _set(scheduler: Any, name: str, value: Option) -> None:
    default = getattr(scheduler, name)
    try:
        setattr(scheduler, name, value if default is None else of_type(name, value, default))
    except TypeError:  # a number out of range, or a field without a default, whose type is not known here
        takes = "another number: 0 or more, within its bits" if type(default) is int else "a value of another type"
        raise ConfigError(f"backend_options: {name}={value!r}: takes {takes}") from None


def _properties(config: ModelConfig, dtype: str, as_it_is: bool) -> dict[str, Any]:
    """Properties of the device. For a model in its own format OpenVINO decides whether activations are rounded."""
    precision = _PRECISIONS[dtype]
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": "u8" if config.kv_cache_dtype == "int8" else precision,
        "INFERENCE_NUM_THREADS": config.num_threads or len(os.sched_getaffinity(0)),
    }
    if config.quantization == "none" and not as_it_is:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    return properties | {name: value for name, value in config.backend_options.items() if not name.islower()}


def _checked(config: ModelConfig, folder: Path) -> Path:
    """The folder in OpenVINO's format, whose weights have the bits that they have."""
    if config.quantization != "none":
        raise ConfigError(
            f"quantization={config.quantization!r}: {config.model} is in OpenVINO's format, with weights as they were"
            " converted: leave quantization out, or name the checkpoint that it was made of"
        )
    return folder


def _exported(config: ModelConfig, folder: Path, dtype: str) -> Path:
    """The model in OpenVINO's format; raises ModelLoadFailed with what the exporter said."""
    from importlib.metadata import version

    weights = config.quantization if config.quantization != "none" else _WEIGHTS[dtype]

    def make(place: Path) -> None:
        command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "--model", str(folder)]
        command = [sys.executable, *command] if os.access(command[0], os.R_OK) else command
        command += ["--task", "text-generation-with-past", "--weight-format", weights, str(place)]
        command += ["--group-size-fallback", "adjust"] if weights == "int4" else []  # small models: smaller groups
        run_converter(config, command, "the export to OpenVINO's format")

    return converted_model(config, f"openvino-{weights}-{version('optimum-intel')}", make)


class _OpenVino:
    """Its pipeline as a Library. A thread of its own steps, so that a step's tokens are read while the next one runs:
    handles may be read and cancelled, and requests added, by other threads than the one that steps.
    """

    def __init__(self, pipeline: Any, max_num_seqs: int, vocab_size: int, outputs: CheckedOutputs) -> None:
        import openvino_genai
        from openvino import Tensor

        self._genai = openvino_genai
        self._tensor = Tensor
        self._pipeline = pipeline
        self._max_num_seqs = max_num_seqs
        self._vocab_size = vocab_size
        self._outputs = outputs
        self._handles: dict[str, Any] = {}
        self._arrivals = 0
        self._added = threading.Event()
        self._stepped = threading.Event()
        self._failure: Exception | None = None
        """What a step raised."""
        threading.Thread(target=self._run, name="openvino", daemon=True).start()

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        self._arrivals += 1
        prompt = self._tensor(np.array([sequence.token_ids], np.int64))
        try:
            handle = self._pipeline.add_request(self._arrivals, prompt, self._config(sequence, params))
        except RuntimeError as error:
            raise InvalidRequest(f"OpenVINO: {one_line(error)}") from None
        self._handles[sequence.request_id] = handle
        self._added.set()

    def cancel(self, request_id: str) -> None:
        if (handle := self._handles.pop(request_id, None)) is not None:
            handle.cancel()

    def poll(self) -> list[Event]:
        """Waits without limit for a step to end, so that the manager sees one that hangs."""
        self._stepped.wait()
        self._stepped.clear()
        if self._failure is not None:
            raise self._failure
        events = [event for name in list(self._handles) for event in self._read(name)]
        for event in events:
            if event.finished or event.error is not None:
                del self._handles[event.request_id]
        return events

    def num_running(self) -> int:
        return min(len(self._handles), self._max_num_seqs)

    def _run(self) -> None:
        while True:
            self._added.wait()
            self._added.clear()
            try:
                while self._pipeline.has_non_finished_requests():
                    self._pipeline.step()
                    self._stepped.set()
            except Exception as error:
                self._failure = error
                self._stepped.set()
                return

    def _read(self, name: str) -> Iterator[Event]:
        handle, status = self._handles[name], self._genai.GenerationStatus
        said = handle.get_status()
        tokens: list[int] = []
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
        if said == status.IGNORED:
            yield Event(name, error=InvalidRequest("prompt: does not fit into the KV cache (kv_cache_gib)"))
        elif tokens or said != status.RUNNING:
            yield Event(name, tokens, finished=said != status.RUNNING)

    def _config(self, sequence: Sequence, params: SamplingParams) -> Any:
        made = sequence.num_output_tokens
        config = self._genai.GenerationConfig(
            max_new_tokens=sequence.conditions.max_tokens - made,
            min_new_tokens=max(0, params.min_tokens - made),
            ignore_eos=params.ignore_eos,
            do_sample=is_sampled(params),
            repetition_penalty=above_zero(params.repetition_penalty),
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            stop_token_ids={*params.stop_token_ids, *(() if params.ignore_eos else sequence.conditions.eos)},
        )
        if is_sampled(params):
            config.temperature = params.temperature
            config.top_p, config.min_p = above_zero(params.top_p), below_one(params.min_p)
            config.rng_seed = sequence.seed % 2**32
            if top_k := cut(params.top_k, self._vocab_size):
                config.top_k = top_k
        if params.constraint is not None:
            self._outputs.prepare()
            config.structured_output_config = structured(self._genai, params.constraint)
        return config

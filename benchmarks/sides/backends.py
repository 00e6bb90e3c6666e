"""`Generate` over each back end, as a Beam pipeline: beside sides/beam.py, with what each back end is told.

The engine by itself (its own side) has the settings that come of these, so that both do the same work; a test compares
them. The prefix cache is off, as rounds repeat their prompts, OpenVINO's KV cache is in u8, its own default, and vLLM
compiles nothing, which takes minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sides.beam import MillracePipeline
from benchmarks.sides.millrace import settings
from benchmarks.sides.openvino import MAX_NUM_BATCHED_TOKENS
from benchmarks.sides.vllm_server import VllmServer
from benchmarks.texts import words_of
from benchmarks.workload import LONGEST

_INT8 = {"quantization": "int8"}


class BackendPipeline(MillracePipeline):
    """Token ids in, by a back end that takes them."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def load(self, folder: Path, dtype: str) -> None:
        self.open(SETTINGS[self._backend](folder, dtype) | {"backend": self._backend})


class LlamaCppPipeline(MillracePipeline):
    """Text in: llama.cpp's own tokenizer reads it. The folder holds a conversion, beside the checkpoint."""

    def load(self, folder: Path, dtype: str) -> None:
        del dtype  # the file's
        self.words = words_of(checkpoint_of(folder))
        self.open(llama_cpp(folder))


class EndpointPipeline(MillracePipeline):
    """Text in, over HTTP, to vLLM's OpenAI server, which this process starts."""

    def load(self, folder: Path, dtype: str) -> None:
        from benchmarks.environments import InstalledEngine

        self.words = words_of(folder)
        self._server = VllmServer(InstalledEngine("vllm").python(), folder, dtype)
        options = {"urls": self._server.url, "dialect": "openai-completions", "extra_parameters": "ignore_eos"}
        self.open({"backend": "endpoint", "model": str(folder), "backend_options": options})


def checkpoint_of(converted: Path) -> Path:
    """The checkpoint beside which a conversion lies."""
    return converted.with_name(converted.name.partition(".gguf")[0])


def llama_cpp(folder: Path) -> dict[str, Any]:
    """Settings of a GGUF file in that folder."""
    file = {"model": str(folder / "model.gguf"), "max_model_len": LONGEST}
    return {"backend": "llama_cpp", **file, "prefix_caching": False}


def _vllm(folder: Path, dtype: str) -> dict[str, Any]:
    return settings(folder, dtype) | {"kv_cache_gib": 2, "backend_options": {"enforce_eager": True}}


def _openvino(folder: Path, dtype: str) -> dict[str, Any]:
    weights = _INT8 | {"dtype": "bfloat16"} if dtype == "int8" else {"dtype": dtype}
    ours = {"prefix_caching": False, "kv_cache_gib": 1, "kv_cache_dtype": "int8"}
    return {"model": str(folder), "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS, **ours, **weights}


def _ctranslate2(folder: Path, dtype: str) -> dict[str, Any]:
    weights = _INT8 if dtype == "int8" else {}
    return {"model": str(folder), "dtype": "float32", **weights}


SETTINGS = {"torch": settings, "vllm": _vllm, "openvino": _openvino, "ctranslate2": _ctranslate2}

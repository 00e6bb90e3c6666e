"""The engine of the embedded model, and others on random logits, with requests whose outputs are constrained."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import millrace.model_manager.store
from millrace.model_manager.client.generation import text_of
from millrace.model_manager.client.tokenizing import Tokenizer as ClientsTokenizer
from millrace.model_manager.engine.engine import LLMEngine
from millrace.model_manager.engine.process import load_engine
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.engine_messages import StartEngine
from millrace.model_manager.wire.errors import ErrorInfo
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams

FOLDER = Path(millrace.model_manager.store.__file__).parent / "embedded" / EMBEDDED_MODEL
PROMPT = "The order of Ann, 3 apples and 12 pears, was placed on 2026-01-31."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "amounts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "kind": {"enum": ["order", "invoice", "review"]},
    },
    "required": ["name", "amounts", "kind"],
    "additionalProperties": False,
}
DATE = r"\d{4}-\d\d-\d\d"
LARK = 'start: "<" NAME ">"\nNAME: /[a-z]{1,9}/'
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "regex": {"regex": DATE},
    "schema": {"json_schema": SCHEMA},
    "json": {"json": True},
    "grammar": {"grammar": LARK},
    "choice": {"choice": ["yes", "no", "perhaps not"]},
}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@cache
def clients_tokenizer() -> ClientsTokenizer:
    return ClientsTokenizer.load(FOLDER)


@cache
def prompt_tokens() -> list[int]:
    return list(tokenizer().encode(PROMPT).ids)


def engine(**settings: Any) -> LLMEngine:
    """An engine of the embedded model."""
    return _loaded(ModelConfig(model=EMBEDDED_MODEL, kv_cache_gib=0.05, **{"max_num_seqs": 8} | settings), FOLDER)


def random_engine(folder: Path, **settings: Any) -> LLMEngine:
    """An engine of a model with random weights, and with the embedded model's shape and tokenizer."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(FOLDER, max_position_embeddings=4096))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(FOLDER / name, folder / name)
    return _loaded(ModelConfig(model=str(folder), kv_cache_gib=0.2, **settings), folder)


def _loaded(config: ModelConfig, folder: Path) -> LLMEngine:
    loaded = load_engine(StartEngine(config, str(folder), 1.0))
    assert isinstance(loaded, LLMEngine)
    return loaded


def request(name: str, constraint: dict[str, Any] | None, **params: Any) -> Request:
    fields = {"max_tokens": 80, "temperature": 1.0} | params | ({"constraint": constraint} if constraint else {})
    return Request(name, prompt_tokens(), SamplingParams.parse(fields))


class Run:
    """What requests came to in an engine that does nothing else."""

    def __init__(self, engine: LLMEngine, *requests: Request) -> None:
        self.requests = {request.request_id: request for request in requests}
        self.outputs: dict[str, Output] = {}
        self.failures: dict[str, ErrorInfo] = {}
        self.progress: dict[str, list[int]] = {}
        before = engine.stats().steps
        for request in requests:
            engine.add(request)
        while engine.has_work():
            self._step(engine)
        self.steps = engine.stats().steps - before
        """Steps that computed something."""
        assert engine._blocks.num_free == engine._blocks.num_blocks
        assert self.outputs.keys() | self.failures.keys() == self.requests.keys()

    def _step(self, engine: LLMEngine) -> None:
        result = engine.step()
        engine.check_integrity()
        self.outputs |= {output.request_id: output for output in result.outputs}
        self.failures |= {failure.request_id: failure.error for failure in result.failures}
        for request_id, tokens in result.new_token_ids.items():
            self.progress.setdefault(request_id, []).extend(tokens)

    def text(self, name: str) -> str:
        return text_of(self.outputs[name], self.requests[name].params, clients_tokenizer())

    def tokens(self) -> dict[str, list[int]]:
        return {name: output.token_ids for name, output in self.outputs.items()}


def holds(constraint: dict[str, Any], text: str) -> bool:
    """Whether a text is what the constraint asks for, by others' judgement."""
    if "regex" in constraint:
        return re.fullmatch(constraint["regex"], text) is not None
    if "choice" in constraint:
        return text in constraint["choice"]
    if "grammar" in constraint:
        return re.fullmatch("<[a-z]{1,9}>", text) is not None
    value = json.loads(text)
    if "json_schema" in constraint:
        jsonschema.validate(value, constraint["json_schema"])
    return True

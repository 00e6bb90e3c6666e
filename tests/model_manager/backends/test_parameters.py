"""Each parameter that a back end's row lists is passed on by its file: what is asked of the engine changes with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from millrace.model_manager.backends.ctranslate2_batches import BatchedGenerator
from millrace.model_manager.backends.endpoint import kserve
from millrace.model_manager.backends.llama_cpp.exchange import _body, _grammar
from millrace.model_manager.backends.openvino import _OpenVino
from millrace.model_manager.backends.openvino_constraints import CheckedOutputs
from millrace.model_manager.backends.vllm import _Vllm
from millrace.model_manager.engine.scheduling.admission import admitted
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.backends import ALL_PARAMETERS, BACKENDS, HOSTED_PARAMETERS
from millrace.model_manager.wire.dialect_parameters import (
    ALWAYS,
    LLAMA_COMPLETION,
    OPENAI,
    OPENAI_EXTRA,
    TGI,
    TOKEN_IDS,
)
from millrace.model_manager.wire.request import Adapter, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.every_parameter import CHANGED
from tests.model_manager.engine.scheduling.test_stopping import FOLDER
from tests.waiting import eventually

BASE: dict[str, Any] = {"temperature": 0.7, "max_tokens": 20}
OBEYED_BY_LLAMA_CPP_ENGINE = frozenset(("n", "priority", "deadline", "include_stop_str_in_output"))
"""By `llama_cpp/engine.py` and the client, not by the server's body."""


class Recorder:
    """Stands in for an engine: holds what it was asked, as plain values."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.news = threading.Event()

    def add_request(self, *arguments: Any, **named: Any) -> None:
        self.generate_batch(*arguments, **named)

    def generate_batch(self, *arguments: Any, **named: Any) -> None:
        self.asked.append((arguments[1:], {name: value for name, value in named.items() if name != "callback"}))
        self.news.set()


class Named(SimpleNamespace):
    """A library's class of parameters, whose instances compare and show what they were made of."""


def sequence_of(params: SamplingParams) -> Sequence:
    adapter = Adapter(name="tone", folder="/tone", digest="d1") if params.adapter else None
    free = msgspec.structs.replace(params, constraint=None)
    return admitted(
        Request("request", [1, 2], free, adapter=adapter),
        vocab_size=1000,
        max_len=64,
        stop_rules=StopRules.load(FOLDER, [7]),
        known={},
        now=0.0,
        order=1,
    )


def of_vllm(params: SamplingParams) -> Any:
    engine = Recorder()
    library = _Vllm(engine, 8, [7])
    library.submit(sequence_of(params), params)
    return engine.asked


def of_openvino(params: SamplingParams) -> Any:
    pipeline = Recorder()
    library = _OpenVino(pipeline, 8, 100, CheckedOutputs(FOLDER, 1536, [7]))
    library.submit(sequence_of(params), params)
    return pipeline.asked


def of_ctranslate2(params: SamplingParams) -> Any:
    generator = Recorder()
    library = BatchedGenerator(generator, [str(n) for n in range(100)], batch_size=1, eos=[7])
    library.submit(sequence_of(params), params)
    eventually(generator.news.is_set)
    return generator.asked


def of_llama_cpp(params: SamplingParams) -> Any:
    grammar = None if params.constraint is None else _grammar(params.constraint.key())
    return _body(Request("request", [], params, text="x"), "x", grammar, 64)


BUILDERS: dict[str, Callable[[SamplingParams], Any]] = {
    "vllm": of_vllm,
    "openvino": of_openvino,
    "ctranslate2": of_ctranslate2,
    "llama_cpp": of_llama_cpp,
}
ELSEWHERE = {name: OBEYED_BY_LLAMA_CPP_ENGINE if name == "llama_cpp" else HOSTED_PARAMETERS for name in BUILDERS}
"""Parameters that are obeyed on millrace's side of the engine."""


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files import of vLLM and OpenVINO."""
    made: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": Named},
        "vllm.exceptions": {"VLLMClientError": RuntimeError},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": lambda *fields: fields},
        "vllm.sampling_params": {
            "RequestOutputKind": SimpleNamespace(DELTA="delta"),
            "StructuredOutputsParams": Named,
        },
        "openvino": {"Tensor": lambda array: array.tolist()},
        "openvino_genai": {"GenerationConfig": Named, "StructuredOutputConfig": Named},
    }
    for name, fields in made.items():
        module = ModuleType(name)
        vars(module).update(fields)
        monkeypatch.setitem(sys.modules, name, module)


def test_every_parameter_has_a_value_that_is_not_its_default() -> None:
    assert CHANGED.keys() == ALL_PARAMETERS
    defaults, changed = SamplingParams(), SamplingParams.parse(CHANGED)
    assert [name for name in CHANGED if getattr(defaults, name) == getattr(changed, name)] == []


PASSED_ON = [(back, name) for back in BUILDERS for name in sorted(BACKENDS[back].parameters - ELSEWHERE[back])]


@pytest.mark.parametrize(("back_end", "name"), PASSED_ON)
def test_a_parameter_of_a_row_changes_what_the_engine_is_asked(back_end: str, name: str) -> None:
    before = BUILDERS[back_end](SamplingParams.parse(BASE))
    after = BUILDERS[back_end](SamplingParams.parse(BASE | {name: CHANGED[name]}))
    assert before != after


REFUSED = [(back, name) for back in BUILDERS for name in sorted(ALL_PARAMETERS - BACKENDS[back].parameters)]


@pytest.mark.parametrize(("back_end", "name"), REFUSED)
def test_a_parameter_that_a_file_does_not_read_is_in_no_row(back_end: str, name: str) -> None:
    """The other way round: else a row would refuse what its file passes on."""
    before = BUILDERS[back_end](SamplingParams.parse(BASE))
    assert BUILDERS[back_end](SamplingParams.parse(BASE | {name: CHANGED[name]})) == before


def test_servers_are_sent_what_some_dialect_takes_and_no_more() -> None:
    dialects = (
        *(
            OPENAI,
            OPENAI_EXTRA - {TOKEN_IDS},
            TGI.own,
            kserve._IN_JSON,
            frozenset(kserve._INPUTS),
        ),
        *(LLAMA_COMPLETION.own, ALWAYS),
    )
    taken = frozenset[str]().union(*dialects)
    assert BACKENDS["endpoint"].parameters == BACKENDS["server"].parameters == taken


def test_only_the_engines_that_are_millraces_own_take_each_new_parameter() -> None:
    assert [name for name, each in BACKENDS.items() if each.parameters is ALL_PARAMETERS] == ["torch", "fake"]

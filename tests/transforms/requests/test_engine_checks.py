from collections.abc import Callable
from typing import NamedTuple

import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.classify import Classify
from millrace.transforms.embed import Embed
from millrace.transforms.extract import Extract
from millrace.transforms.requests.engine_checks import check_asked
from millrace.transforms.requests.model_transform import ModelTransform

URL: dict[str, str | int | float | bool] = {"urls": "http://host"}


class Invoice(NamedTuple):
    number: str


@pytest.mark.parametrize(
    ("model", "task", "params", "told"),
    [
        (ModelConfig(backend="openvino"), "score", {}, "cannot score; back ends that can: torch, vllm, fake$"),
        (ModelConfig(backend="openvino"), "extract", {}, "cannot extract; .*: torch, vllm, llama_cpp, fake$"),
        (ModelConfig(backend="endpoint", backend_options=URL), "classify", {}, "cannot classify"),
        (
            ModelConfig(model="m.gguf"),
            "generate",
            {},
            "model='m.gguf': the back end torch takes weights in",
        ),
        (ModelConfig(backend="llama_cpp"), "generate", {}, "takes a GGUF file"),
        (
            ModelConfig(backend="ctranslate2"),
            "generate",
            {"seed": 1},
            "^seed=1: .* does not take it; back ends that do",
        ),
        (ModelConfig(backend="endpoint"), "generate", {}, "^backend_options: urls is missing"),
        (
            ModelConfig(backend="endpoint", backend_options=URL | {"timeout": "long"}),
            "generate",
            {},
            "^backend_options: timeout='long': takes a number",
        ),
        (
            ModelConfig(backend="endpoint", backend_options=URL),
            "generate",
            {"top_k": 4},
            "^top_k=4: the dialect openai does not take it$",
        ),
        (
            ModelConfig(backend="endpoint", backend_options=URL | {"extra_parameters": "top_kk"}),
            "generate",
            {},
            "^backend_options: extra_parameters: ",
        ),
        (
            ModelConfig(backend="endpoint", backend_options=URL | {"dialect": "tgi"}),
            "generate",
            {"min_p": 0.5},
            "^min_p=0.5: the dialect tgi does not take it$",
        ),
        (
            ModelConfig(backend="endpoint", backend_options=URL),
            "generate",
            {"constraint": {"regex": "a+"}},
            "^constraint: the dialect openai takes json, json_schema, got regex$",
        ),
        (
            ModelConfig(backend="server", backend_options={"preset": "tgi"}),
            "generate",
            {"logit_bias": {"1": 2.0}},
            "the dialect tgi does not take it$",
        ),
        (
            ModelConfig(backend="server", backend_options={"preset": "vlm"}),
            "generate",
            {},
            "^backend_options: unknown preset 'vlm': did you mean vllm",
        ),
    ],
)
def test_what_an_engine_does_not_take_is_told_before_the_job(
    model: ModelConfig, task: str, params: dict[str, int], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_asked(model, task, SamplingParams.parse(params))


def test_what_an_engine_takes_passes() -> None:
    check_asked(ModelConfig(), "generate", SamplingParams(seed=1))
    check_asked(ModelConfig(model="m.gguf", backend="llama_cpp"), "extract", SamplingParams())
    check_asked(ModelConfig(model="any", backend="endpoint", backend_options=URL), "embed", SamplingParams())
    check_asked(ModelConfig(backend="server", backend_options={"preset": "vllm"}), "generate", SamplingParams())


@pytest.mark.parametrize(
    "made",
    [
        lambda model: Extract(Invoice, model),
        lambda model: Classify(["praise", "complaint"], model),
        Embed,
    ],
)
def test_a_transform_asks_its_engine_for_its_own_task(made: Callable[[ModelConfig], ModelTransform]) -> None:
    with pytest.raises(ConfigError, match="back ends that can: "):
        made(ModelConfig(backend="ctranslate2"))

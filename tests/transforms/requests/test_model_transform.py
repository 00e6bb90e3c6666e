"""Arguments that Generate, Score, Embed, Extract and Classify all take."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import apache_beam as beam
import pytest

from millrace import Classify, Embed, Extract, Generate, Score
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.requests.model_transform import ModelSettings, ModelTransform
from tests.transforms.clients import PickyClient
from tests.transforms.running import pipeline


class Opened(PickyClient):
    """Remembers how it was opened."""

    options: ClassVar[list[ClientOptions]] = []
    params: ClassVar[list[SamplingParams]] = []

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.options.append(options)

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        self.params.append(params)
        return super().submit(prompt, params, request_id=request_id)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
TRANSFORMS: list[Callable[..., ModelTransform]] = [
    Generate,
    Score,
    Embed,
    lambda *given, **settings: Extract(SCHEMA, *given, **settings),
    lambda *given, **settings: Classify(["good", "bad"], *given, **settings),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_unknown_setting_is_refused_and_the_one_that_was_meant_is_named(transform: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"unknown setting 'fail_fst': did you mean fail_fast\?"):
        transform("stand-in", fail_fst=True)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"max_tokens": 4}, r"params=SamplingParams\(max_tokens=…\)"),
        ({"dtype": "int8"}, r"model=ModelConfig\(dtype=…\)"),
    ],
)
def test_where_a_setting_belongs_is_told(given: dict[str, Any], written: str) -> None:
    with pytest.raises(TypeError, match=f"Generate: .* is no setting of its own: write {written}"):
        Generate("stand-in", **given)


def test_what_is_no_setting_of_this_transform_is_refused_with_all_that_are() -> None:
    known = "model, params, template, system, continuations_column, manager, chat, fail_fast, job, updates, models, "
    known += "traces, open_client"
    with pytest.raises(TypeError, match=f"Score: unknown setting 'stateful': takes {known}"):
        Score("stand-in", stateful=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", list(ModelSettings.__annotations__))
def test_each_setting_is_explained(name: str) -> None:
    assert f"`{name}`" in str(ModelSettings.__doc__)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_settings_reach_the_client(transform: Callable[..., Any]) -> None:
    Opened.options.clear()
    _run(transform("stand-in", manager=ManagerConfig(orphan_grace=7.0), chat=True, job="j", open_client=Opened))
    (options,) = Opened.options
    assert (options.manager.orphan_grace, options.chat, options.job) == (7.0, True, "j")


def test_only_embed_takes_no_chat_template_unless_told_to() -> None:
    Opened.options.clear()
    for transform in (Generate, Score, Embed):
        _run(transform("stand-in", open_client=Opened))
    assert [each.chat for each in Opened.options] == [None, None, False]


def test_vllm_is_loaded_otherwise_to_embed() -> None:
    Opened.options.clear()
    for transform in (Generate, Embed):
        _run(transform(ModelConfig(backend="vllm"), open_client=Opened))
    assert [each.model.backend_options for each in Opened.options] == [{}, {"runner": "pooling"}]


def test_sampled_rows_get_seeds_of_their_own_where_the_engine_takes_seeds() -> None:
    Opened.params.clear()
    models = [
        ModelConfig(),
        ModelConfig(backend="ctranslate2"),
        ModelConfig(backend="endpoint", backend_options={"urls": "http://host"}),
        ModelConfig(backend="endpoint", backend_options={"urls": "http://host", "dialect": "kserve"}),
        ModelConfig(backend="server", backend_options={"preset": "vllm"}),
        ModelConfig(backend="server", backend_options={"preset": "triton"}),
    ]
    for model in models:
        _run(Generate(model, SamplingParams(temperature=1.0), open_client=Opened))
    assert [each.seed is None for each in Opened.params] == [False, True, False, True, False, True]


def _run(transform: ModelTransform) -> None:
    with pipeline() as running:
        rows = running | beam.Create([{"id": "a", "prompt": "so good", "continuations": ["yes"]}])
        rows | transform.with_exception_handling()


def test_values_of_another_type_are_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"Generate: params takes SamplingParams, got dict: .* SamplingParams\(n=2\)"):
        Generate("m", {"n": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"manager takes ManagerConfig, got dict: write ManagerConfig\(linger=3.0\)"):
        Generate("m", manager={"linger": 3.0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"traces takes Traces, got str: write Traces\(…\)"):
        Generate("m", traces="http://localhost:4318")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Embed: model takes a name or a ModelConfig, got int"):
        Embed(3)  # type: ignore[arg-type]


def test_a_constraint_given_as_an_object_is_checked_against_the_back_end() -> None:
    model = ModelConfig(model="m", backend="ctranslate2")
    with pytest.raises(ConfigError, match=r"^constraint='regex': the back end ctranslate2 takes no constraint"):
        Generate(model, SamplingParams(constraint={"regex": "a"}))  # type: ignore[arg-type]

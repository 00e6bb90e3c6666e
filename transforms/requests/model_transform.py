"""The common part of Generate, Score, Embed, Extract and Classify: a model, its client, its dead letters."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import apache_beam as beam
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.typehints import typehints

from millrace.model_manager.store.environments import check_engines
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.conversion import unknown
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.manager_place import manager_place
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.traces import Traces

from ..elements.completions import DEAD_LETTERS, DeadLetter
from ..exception_handling import HandlesExceptions
from ..models.client import ClientOptions, Opener, open_engine_client
from ..models.model_names import further_models
from ..models.shared_model import SharedModel
from ..models.updates import WatchedFile
from ..runners import Runner, finish_bundles_before_checkpoints, lift_job_timeout, running, runs_here
from .asynchronous import AsyncRequestDoFn
from .element_requests import OnFailure, Task
from .engine_checks import check_asked
from .stateful import StatefulRequests
from .updated import UpdatedRequestDoFn, Updates, checked_updates, latest_update


class ModelSettings(TypedDict, total=False):
    """What every transform on a model takes by name.

    `manager`: settings of the model manager; by default those that suit the runner.

    `chat`: whether text goes through the model's chat template, as one user turn; by default if there is one, but for
    Embed by default not.

    `fail_fast`: whether a failed request fails the job with exception handling too.

    `job` names the requests in the manager, where progress is counted; by default a new name.

    `updates` name the model while the job runs (docs/how-to/model-updates.md): a WatchedFile, or a side input, given
    as a PCollection, whose latest element counts, or AsSingleton of one.

    `models` are further models, names or ModelConfigs: a prompt whose column `model` names one of them goes to it, one
    that names none to `model`, and one that names another fails (docs/how-to/many-models.md).

    `traces` say where spans of rows and requests go (docs/how-to/traces.md); by default nowhere.

    `open_client` opens what answers, in each worker process; another than the engine's is for tests and dry runs.
    """

    manager: ManagerConfig | None
    chat: bool | None
    fail_fast: bool
    job: str | None
    updates: Updates
    models: Sequence[str | ModelConfig]
    traces: Traces | None
    open_client: Opener


def chat_with(system: str | None, settings: ModelSettings) -> ModelSettings:
    """The settings where a system message is given: the model must have a chat template. Raises ConfigError."""
    if system is None:
        return settings
    if not system:
        raise ConfigError("system='': takes the text of a system message")
    if settings.get("chat") is False:
        raise ConfigError(
            f"system={system!r}: needs the model's chat template, and chat=False (--chat never) turns it off: "
            "leave one of the two out"
        )
    return {**settings, "chat": True}


class ModelTransform(HandlesExceptions):
    """A result of the task for each prompt, as each finishes. Transforms of equal models share an inference process.

    A failed request fails the job, unless `with_exception_handling()`.
    """

    def __init__(
        self,
        task: Task,
        model: str | ModelConfig,
        params: SamplingParams | None,
        settings: ModelSettings,
        *,
        stateful: bool = False,
    ) -> None:
        """Raises TypeError for an unknown setting, ConfigError for a value of a wrong type."""
        super().__init__()
        _check_names(type(self), settings)
        _check_types(type(self), model, params, settings)
        self._task = task
        self._model = (ModelConfig(model=model) if isinstance(model, str) else model).for_task(task.request)
        self._params = params or SamplingParams()
        check_asked(self._model, task.name, self._params)
        if self._params.adapter and not self._model.max_loras:
            raise ConfigError(f"adapter={self._params.adapter!r}: needs max_loras of 1 or more (--max_loras 1)")
        self._fail_fast = settings.get("fail_fast", False)
        self.job = settings.get("job") or uuid.uuid4().hex
        """Fixed with the graph, so that a bundle's retry has the same."""
        self._updates = checked_updates(settings.get("updates"))
        self._manager = settings.get("manager")
        self._chat = settings.get("chat")
        self._traces = settings.get("traces")
        self._open_client = settings.get("open_client", open_engine_client)
        if stateful and not isinstance(self._updates, WatchedFile | None):
            raise ConfigError("stateful=True: takes updates from a WatchedFile, not from a collection")
        self._stateful = stateful
        others = further_models(self._model, settings.get("models", ()))
        self._others = tuple(each.for_task(task.request) for each in others)
        if self._others and (stateful or self._updates is not None):
            raise ConfigError("models: takes no further models with stateful=True, or with updates of the model")

    @property
    def _on_failure(self) -> OnFailure:
        if self._fail_fast:
            return "fail_fast"
        return "dead_letter" if self._handling else "raise"

    def expand(self, prompts: Any) -> Any:
        runner = running(prompts.pipeline.runner)
        if self._open_client is open_engine_client and runs_here(prompts.pipeline.options, runner):
            place = manager_place(self._manager or runner.manager_config({}))
            check_engines(place, (self._model, *self._others))
        lift_job_timeout(prompts.pipeline.options, runner)
        finish_bundles_before_checkpoints(prompts.pipeline.options)
        outputs = prompts | type(self).__name__ >> self._requests(runner)
        results, dead_letters = outputs.results, outputs[DEAD_LETTERS]
        results.element_type = keyed_as(prompts.element_type, self._task.result)
        dead_letters.element_type = keyed_as(prompts.element_type, DeadLetter)
        return self._outputs(self._emitted(results, prompts), dead_letters)

    def _emitted(self, results: Any, _prompts: Any) -> Any:
        """What leaves the transform: the task's results."""
        return results

    def _requests(self, runner: Runner) -> Any:
        watched = self._updates if isinstance(self._updates, WatchedFile) else None
        model = SharedModel(self._options_on(runner, self._model), self._open_client, watched)
        settings = model, self._task, self._params, self.job, self._on_failure
        if self._stateful:
            return StatefulRequests(*settings)
        if self._updates is None or watched:
            others = {
                each.model: SharedModel(self._options_on(runner, each), self._open_client) for each in self._others
            }
            requests = beam.ParDo(AsyncRequestDoFn(*settings, others))
        else:
            requests = beam.ParDo(UpdatedRequestDoFn(*settings), latest_update(self._updates))
        return requests.with_outputs(DEAD_LETTERS, main="results")

    def _options_on(self, runner: Runner, model: ModelConfig) -> ClientOptions:
        manager = self._manager or runner.manager_config({})
        retry_within = manager.orphan_grace if runner.tries_again else 0.0
        return ClientOptions(
            model,
            manager=manager,
            job=self.job,
            chat=self._chat,
            traces=self._traces,
            retry_within=retry_within,
            on_demand=bool(self._others),
        )

    def display_data(self) -> dict[str, Any]:
        names = ", ".join(each.model for each in (self._model, *self._others))
        shown = {"model": names, "backend": self._model.backend, "on_failure": self._on_failure}
        shown |= {name: str(getattr(self._params, name)) for name in self._params.__struct_fields__}
        return {name: DisplayDataItem(value) for name, value in shown.items()} | {
            "job": DisplayDataItem(self.job, label="Job of the requests")
        }


def _check_types(transform: type, model: object, params: object, settings: ModelSettings) -> None:
    if not isinstance(model, str | ModelConfig):
        raise ConfigError(f"{transform.__name__}: model takes a name or a ModelConfig, got {type(model).__name__}")
    for name, given, kind in (
        ("params", params, SamplingParams),
        ("manager", settings.get("manager"), ManagerConfig),
        ("traces", settings.get("traces"), Traces),
    ):
        if given is not None and not isinstance(given, kind):
            said = ", ".join(f"{each}={value!r}" for each, value in given.items()) if isinstance(given, dict) else "…"
            raise ConfigError(
                f"{transform.__name__}: {name} takes {kind.__name__}, got {type(given).__name__}:"
                f" write {kind.__name__}({said})"
            )


def _check_names(transform: type[ModelTransform], given: Iterable[str]) -> None:
    settings = ModelSettings.__annotations__
    for name in given:
        if name not in settings:
            own = [
                each.name for each in inspect.signature(transform).parameters.values() if each.kind != each.VAR_KEYWORD
            ]
            raise TypeError(f"{transform.__name__}: {_home(name) or unknown(name, [*own, *settings], what='setting')}")


def _home(name: str) -> str | None:
    """What is said of a setting that another argument has."""
    for argument, kind in (("params", SamplingParams), ("model", ModelConfig)):
        if name in kind.__struct_fields__:
            return f"{name} is no setting of its own: write {argument}={kind.__name__}({name}=…)"
    return None


def keyed_as(given: Any, value: type) -> Any:
    """The type of the output elements: `value`, or a pair of key and `value` if the input is keyed; Any if that is not
    known.
    """
    if isinstance(given, typehints.TupleConstraint) and len(given.tuple_types) == 2:
        return typehints.KV[given.tuple_types[0], value]
    return typehints.Any if given is typehints.Any else value

"""The stateful variant: what is kept, when it comes out, that a retry pays for nothing, which runners are refused."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.coders.coders import WindowedValueCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.runners.portability.spark_runner import SparkRunner
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows, IntervalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, EngineLost, NonFiniteLogits
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import DEAD_LETTERS, DeadLetter, Prompt
from millrace.transforms.generate import Generate, _Generating
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.shared_model import SharedModel
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.requests.element_requests import InFlight, PreparedRequest
from millrace.transforms.requests.stateful import Outstanding, StatefulRequestDoFn
from tests.transforms.clients import PickyClient

WINDOW = IntervalWindow(0, 60)
PANE = PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)
CODER = WindowedValueCoder(beam.coders.registry.get_coder(Prompt), beam.coders.coders.IntervalWindowCoder())


class SlowClient(PickyClient):
    """Answers when it is told to; remembers which requests were submitted, all in the process together."""

    submitted: ClassVar[list[str]] = []
    held: ClassVar[list[tuple[Future[Any], Callable[[], Any]]]] = []

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        self.submitted.append(request_id)
        words, future = self._checked(prompt), Future[Any]()
        self.held.append((future, lambda: self.complete(words, params)))
        return future

    @classmethod
    def finish(cls) -> None:
        while cls.held:
            future, answer = cls.held.pop()
            try:
                future.set_result(answer())
            except (NonFiniteLogits, EngineLost) as error:
                future.set_exception(error)


class State:
    """A value in the runner's state."""

    def __init__(self) -> None:
        self.value: bytes | None = None

    def read(self) -> bytes | None:
        return self.value

    def write(self, value: bytes) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Timer:
    """A timer; `held_at` are the timestamps that the watermark may not pass before it fires."""

    def __init__(self) -> None:
        self._input_timestamp = Timestamp(10**9)  # as Beam has it where a timer sets itself again
        self.held_at: list[Timestamp] = []

    def set(self, _fires: Timestamp) -> None:
        self.held_at.append(self._input_timestamp)


class Worker:
    """A worker process with the DoFn, and the runner's state of one key, which outlives it."""

    def __init__(self, state: State | None = None, on_failure: Any = "dead_letter") -> None:
        options = ClientOptions(ModelConfig(model="stand-in", max_model_len=8), manager=ManagerConfig())
        client = SharedModel(options, SlowClient)
        self.state, self.timer = state or State(), Timer()
        self.dofn = StatefulRequestDoFn(CODER, client, _Generating(None, None), SamplingParams(), "job", on_failure)
        self.dofn.setup()
        self.dofn.start_bundle()

    def process(self, text: str, key: str = "k") -> list[Any]:
        element = WindowedValue(Prompt(id=text, text=text), Timestamp(7), (WINDOW,), PANE)
        windowed = WindowedValue(None, Timestamp(7), ())
        return list(self.dofn.process((key, CODER.encode(element)), windowed, self.state, self.timer))

    def fire(self, key: str = "k") -> list[Any]:
        return list(self.dofn.look(key, self.state, self.timer))


@pytest.fixture(autouse=True)
def nothing_submitted() -> Iterator[None]:
    SlowClient.submitted.clear()
    SlowClient.held.clear()
    yield
    SlowClient.submitted.clear()
    SlowClient.held.clear()


def test_a_bundle_ends_without_the_answer_and_the_timer_brings_it() -> None:
    worker = Worker()
    assert worker.process("one two") == []
    worker.dofn.finish_bundle()
    assert worker.state.value is not None
    assert worker.fire() == []
    SlowClient.finish()
    (result,) = worker.fire()
    assert (result.value.text, result.timestamp, tuple(result.windows), result.pane_info) == (
        "ONE TWO",
        Timestamp(7),
        (WINDOW,),
        PANE,
    )
    assert worker.state.value is None


def test_the_watermark_is_held_at_the_elements_own_time_until_it_is_out() -> None:
    worker = Worker()
    worker.process("one")
    worker.fire()
    worker.fire()
    assert worker.timer.held_at == [Timestamp(7)] * 3
    SlowClient.finish()
    worker.fire()
    assert len(worker.timer.held_at) == 3


def test_a_timer_that_fires_once_too_often_gives_nothing() -> None:
    worker = Worker()
    worker.process("one")
    SlowClient.finish()
    assert len(worker.fire()) == 1
    assert worker.fire() == []


def test_a_retried_timer_asks_for_the_same_request() -> None:
    worker = Worker()
    worker.process("one")
    SlowClient.finish()
    kept = worker.state.value
    assert len(worker.fire()) == 1
    worker.state.value = kept  # the bundle failed: the runner's state is as it was
    assert worker.fire() == []
    SlowClient.finish()
    assert len(worker.fire()) == 1
    assert len(SlowClient.submitted) == 2
    assert len(set(SlowClient.submitted)) == 1  # by its id the manager knows what is done


def test_another_worker_finds_the_element_in_the_runners_state() -> None:
    worker = Worker()
    worker.process("one")
    successor = Worker(worker.state)
    assert successor.fire() == []
    SlowClient.finish()
    (result,) = successor.fire()
    assert result.value.text == "ONE"
    assert len(set(SlowClient.submitted)) == 1


def test_what_cannot_be_submitted_is_a_dead_letter_at_once() -> None:
    worker = Worker()
    (output,) = worker.process("nine words " * 9)
    assert output.tag == DEAD_LETTERS
    assert isinstance(output.value.value, DeadLetter)
    assert worker.state.value is None
    assert worker.timer.held_at == []


def test_a_request_that_fails_is_a_dead_letter() -> None:
    worker = Worker()
    worker.process("nan")
    SlowClient.finish()
    (output,) = worker.fire()
    assert (output.tag, output.value.value.error) == (DEAD_LETTERS, "NonFiniteLogits")
    assert worker.state.value is None


def test_what_is_wrong_with_the_engine_is_raised_for_the_runner() -> None:
    worker = Worker()
    worker.process("lost")
    SlowClient.finish()
    kept = worker.state.value
    with pytest.raises(EngineLost):
        worker.fire()
    worker.state.value = kept
    assert worker.fire() == []  # asked for again
    assert len(SlowClient.submitted) == 2


def test_updates_of_a_collection_are_refused() -> None:
    p = beam.Pipeline()
    with pytest.raises(ConfigError, match="stateful=True: takes updates from a WatchedFile"):
        Generate("stand-in", updates=p | beam.Create(["a"]), open_client=StandInClient, stateful=True)


def test_equal_elements_each_have_their_answer() -> None:
    one, two = Worker(), Worker()
    one.process("same", "k1")
    two.process("same", "k2")
    SlowClient.finish()
    assert [len(worker.fire(key)) for worker, key in ((one, "k1"), (two, "k2"))] == [1, 1]


def add(outstanding: Outstanding, key: str, *, done: bool) -> None:
    client, future = outstanding.leased().begin(), Future[Any]()
    if done:
        future.set_result(None)
    prepared = PreparedRequest(key, Prompt(text="a"), SamplingParams(), (), WindowedValue(None, 0, ()))
    outstanding.add(key, InFlight(prepared, future, client))


def test_results_that_are_not_asked_for_are_kept_up_to_a_bound() -> None:
    model = SharedModel(ClientOptions(ModelConfig(model="stand-in"), manager=ManagerConfig()), SlowClient)
    outstanding = Outstanding(model, max_unclaimed=2)
    for key in ("waiting", "old", "new"):
        add(outstanding, key, done=key != "waiting")
    assert [key in outstanding for key in ("waiting", "old", "new")] == [True, False, True]
    assert outstanding.take_finished("waiting") is None
    assert outstanding.take_finished("new") is not None


def other_bundle(outstanding: Outstanding) -> None:
    """Submits a request while this worker's is done, which makes one too many."""
    SlowClient.finish()
    outstanding._max_unclaimed = 1
    add(outstanding, "other", done=False)


def expect_it_comes_out(worker: Worker) -> None:
    assert worker.state.value is not None
    assert worker.fire() == []  # submitted again
    SlowClient.finish()
    assert len(worker.fire()) == 1
    assert worker.state.value is None


@pytest.mark.parametrize("call", ["take_finished", "waited"])
def test_a_request_that_another_bundle_drops_during_a_look_is_submitted_again(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    worker.process("one")
    outstanding = worker.dofn._outstanding
    real = getattr(outstanding, call)

    def after_the_drop(key: str) -> Any:
        monkeypatch.undo()
        other_bundle(outstanding)
        return real(key)

    monkeypatch.setattr(outstanding, call, after_the_drop)
    assert worker.fire() == []
    expect_it_comes_out(worker)
    assert len(set(SlowClient.submitted)) == 1


def test_a_request_that_another_bundle_drops_as_soon_as_it_is_submitted_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker()
    outstanding = worker.dofn._outstanding
    real = outstanding.add

    def before_the_drop(key: str, in_flight: InFlight) -> None:
        monkeypatch.undo()
        real(key, in_flight)
        other_bundle(outstanding)

    monkeypatch.setattr(outstanding, "add", before_the_drop)
    assert worker.process("one") == []
    expect_it_comes_out(worker)


def test_with_the_last_dofn_of_a_process_its_requests_end() -> None:
    worker = Worker()
    worker.process("one")
    ((future, _),) = SlowClient.held
    worker.dofn.teardown()
    assert future.cancelled()


@pytest.mark.parametrize(
    ("runner", "flags"),
    [
        ("DirectRunner", []),
        (FnApiRunner(), []),
        (BundleBasedDirectRunner(), []),
        (PortableRunner(), ["--job_endpoint=embed"]),
        (SparkRunner(), []),
    ],
)
def test_a_runner_without_timers_of_real_time_is_refused_by_name(runner: Any, flags: list[str]) -> None:
    p = beam.Pipeline(runner=runner, options=PipelineOptions(flags))
    name = runner if isinstance(runner, str) else type(runner).__name__
    with pytest.raises(ConfigError, match=rf"stateful=True.*{name}"):
        _ = p | beam.Create(["a"]) | Generate("stand-in", open_client=StandInClient, stateful=True)


@pytest.mark.parametrize("runner", [PrismRunner(), FlinkRunner(), PortableRunner()])
def test_a_runner_with_them_is_taken(runner: Any) -> None:
    p = beam.Pipeline(runner=runner)
    prompts = p | PeriodicImpulse(0, 1, 1) | beam.Map(str) | beam.WindowInto(FixedWindows(10))
    outputs = prompts | Generate("stand-in", open_client=StandInClient, stateful=True)
    assert outputs.windowing == prompts.windowing


def test_input_that_ends_is_refused() -> None:
    p = beam.Pipeline(runner=PrismRunner())
    with pytest.raises(ConfigError, match="stateful=True: takes a stream"):
        _ = p | beam.Create(["a"]) | Generate("stand-in", open_client=StandInClient, stateful=True)

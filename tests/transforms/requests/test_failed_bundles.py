"""The DoFn of a bundle that failed, which Beam has thrown away: its requests wait for the retry."""

from concurrent.futures import Future
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import EngineLost
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.generate import Generate
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.shared_model import SharedModel
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.requests.asynchronous import AsyncRequestDoFn
from tests.waiting import eventually


class Holding(StandInClient):
    """Answers nothing."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.futures: list[Future[Any]] = []
        self.closed = False

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:  # noqa: ARG002
        self.futures.append(Future())
        return self.futures[-1]

    def close(self) -> None:
        self.closed = True
        super().close()


def torn_down(retry_within: float) -> Holding:
    """The client of a DoFn that was torn down in the middle of a bundle."""
    clients: list[Holding] = []

    def opened(options: ClientOptions) -> Holding:
        clients.append(Holding(options))
        return clients[-1]

    shared = SharedModel(ClientOptions(ModelConfig(model="stand-in"), retry_within=retry_within), opened)
    task = Generate("stand-in")._task
    dofn = AsyncRequestDoFn(shared, task, SamplingParams(), "job", "raise")
    dofn.setup()
    dofn.start_bundle()
    list(dofn.process("a", GlobalWindows.windowed_value("a")))
    dofn.teardown()
    return clients[0]


def test_where_bundles_are_retried_its_requests_go_on_and_its_client_stays_open() -> None:
    client = torn_down(retry_within=3600.0)
    assert not client.futures[0].cancelled()
    assert not client.closed


def test_they_are_cancelled_when_no_retry_came_in_time() -> None:
    client = torn_down(retry_within=0.01)
    eventually(lambda: client.closed)
    assert client.futures[0].cancelled()


def test_where_bundles_are_not_retried_they_are_cancelled_at_once() -> None:
    client = torn_down(retry_within=0.0)
    assert client.futures[0].cancelled()
    assert client.closed


class RetryingRunner(FnApiRunner):
    """Has another name than the runner that never retries; the test retries in its place."""


class Failing(Holding):
    """Fails the bundle at its last prompt, the first time."""

    opened: ClassVar[list["Failing"]] = []

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.opened.append(self)
        self.running_at_retry = 0

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        if prompt == "last" and not self.running_at_retry:
            self.running_at_retry = -1
            raise EngineLost("the engine died 4 times")
        if self.running_at_retry == -1:
            self.running_at_retry = sum(not future.cancelled() for future in self.futures)
        future = super().submit(prompt, params, request_id=request_id)
        if self.running_at_retry:
            future.set_result(self.complete([prompt], params))
        return future


def test_a_worker_of_beams_that_tries_a_bundle_again_finds_the_client_and_what_runs_there() -> None:
    Failing.opened.clear()
    p = beam.Pipeline(runner=RetryingRunner())
    patient = ManagerConfig(orphan_grace=3600.0)
    generate = Generate("stand-in", manager=patient, open_client=Failing)
    _ = p | beam.Create(["a", "b", "last"], reshuffle=False) | generate
    with pytest.raises(Exception, match="the engine died"):
        p.run()
    p.run().wait_until_finish()
    (client,) = Failing.opened
    assert client.running_at_retry == 2

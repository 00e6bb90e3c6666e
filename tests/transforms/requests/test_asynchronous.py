"""The DoFn while its model changes: every element is answered once, and says by which model."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from apache_beam.transforms.window import GlobalWindows

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelReplaced
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.generate import Generate
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.shared_model import SharedModel
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.requests.asynchronous import AsyncRequestDoFn
from tests.waiting import eventually


class HeldClient(StandInClient):
    """Answers as it is told to."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.futures: dict[str, Future[Any]] = {}
        self.is_retired = self._closed = False

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:  # noqa: ARG002
        if self.is_retired:
            raise ModelReplaced("another has its place")
        self.futures[request_id] = Future()
        return self.futures[request_id]

    def answer(self) -> None:
        """All that was not cancelled."""
        for future in self.futures.values():
            if not future.done():
                future.set_result(self.complete(["said"], SamplingParams()))

    def retire(self) -> None:
        self.is_retired = True

    def close(self) -> None:
        self._closed = True
        super().close()

    def is_closed(self) -> bool:
        return self._closed


class Step:
    """A DoFn, as a runner calls it, and the clients that it opened."""

    def __init__(self) -> None:
        self.clients: dict[str, HeldClient] = {}
        options = ClientOptions(ModelConfig(model="old"), job="job")
        clients = self.clients

        def opened(options: ClientOptions) -> HeldClient:
            clients[options.model.model] = HeldClient(options)
            return clients[options.model.model]

        self.shared = SharedModel(options, opened)
        self.dofn = AsyncRequestDoFn(self.shared, Generate("old")._task, SamplingParams(), "job", "raise")
        self.dofn.setup()
        self.dofn.start_bundle()

    def process(self, *prompts: str) -> list[tuple[str, str]]:
        return _made(out for each in prompts for out in self.dofn.process(each, GlobalWindows.windowed_value(each)))

    def finish(self) -> list[tuple[str, str]]:
        return _made(self.dofn.finish_bundle())

    def change(self, model: str) -> None:
        lease = self.shared.lease(self)
        lease.switch.ask(model)
        eventually(lambda: lease.switch.current is not None and lease.switch.current.model == model)
        lease.end()


def _made(outputs: Iterable[Any]) -> list[tuple[str, str]]:
    return sorted((output.value.text, output.value.model) for output in outputs)


def test_what_is_in_flight_ends_with_its_model_and_what_comes_goes_to_the_next() -> None:
    step = Step()
    step.process("a", "b")
    step.change("new")
    step.process("c")
    assert (len(step.clients["old"].futures), len(step.clients["new"].futures)) == (2, 1)
    assert not step.clients["old"].is_closed()
    step.clients["new"].answer()
    step.clients["old"].answer()
    assert step.finish() == [("SAID", "new"), ("SAID", "old"), ("SAID", "old")]
    eventually(step.clients["old"].is_closed)  # or by the thread that opened the other, which uses it until its end
    step.dofn.teardown()
    assert step.clients["new"].is_closed()


def test_a_bundle_tried_again_after_a_change_is_paid_once_and_says_who_answered() -> None:
    step = Step()
    step.process("a", "b")
    step.change("new")
    step.dofn.start_bundle()  # the one before has failed, which nobody says
    step.process("a", "later")
    assert (len(step.clients["old"].futures), len(step.clients["new"].futures)) == (2, 1)
    step.clients["old"].answer()
    step.clients["new"].answer()
    assert step.finish() == [("SAID", "new"), ("SAID", "old")]
    eventually(step.clients["old"].is_closed)  # or by the thread that opened the other, which uses it until its end
    step.dofn.teardown()


def test_what_the_old_model_failed_before_is_asked_of_the_new_one() -> None:
    step = Step()
    step.process("a")
    (future,) = step.clients["old"].futures.values()
    future.cancel()
    step.change("new")
    step.dofn.start_bundle()
    step.process("a")
    step.clients["new"].answer()
    assert step.finish() == [("SAID", "new")]
    eventually(step.clients["old"].is_closed)  # or by the thread that opened the other, which uses it until its end
    step.dofn.teardown()


def test_a_dofn_that_is_lost_lets_go_of_all_its_models() -> None:
    step = Step()
    step.process("a")
    step.change("new")
    step.process("b")
    clients = step.clients
    del step
    gc.collect()
    eventually(lambda: clients["old"].is_closed() and clients["new"].is_closed())

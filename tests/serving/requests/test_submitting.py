"""The queue in front of the engine's client: order, cancelling, errors. No engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest

from millrace.model_manager.client.session import WouldWait
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.serving.requests.submitting import Crossing, Submitter
from tests.waiting import eventually


class Credits:
    """A client that holds back the first request until it may go on."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.cancelled: list[str] = []
        self.waits = threading.Event()
        self.may_go_on = threading.Event()

    def sender(self, name: str) -> Callable[[bool], Future[Any]]:
        def send(may_wait: bool) -> Future[Any]:
            if not may_wait and not self.may_go_on.is_set():
                raise WouldWait
            self.waits.set()
            assert self.may_go_on.wait(60)
            self.order.append(name)
            return Future()

        return send

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


@pytest.fixture
def client() -> Credits:
    return Credits()


@pytest.fixture
def submitter(client: Credits) -> Iterator[Submitter]:
    made = Submitter(client.cancel)
    yield made
    client.may_go_on.set()
    made.close()


def test_the_most_urgent_request_goes_first_and_equals_in_order(submitter: Submitter, client: Credits) -> None:
    sent: list[Future[Any]] = []
    submitter.put(0, client.sender("first"), sent.append)
    assert client.waits.wait(60)
    for priority, name in ((5, "late"), (0, "a"), (-3, "urgent"), (0, "b")):
        submitter.put(priority, client.sender(name), sent.append)
    done = threading.Event()
    submitter.put(9, client.sender("last"), lambda _: done.set())
    client.may_go_on.set()
    assert done.wait(60)
    assert client.order == ["first", "urgent", "a", "b", "late", "last"]
    assert len(sent) == 5


def test_what_need_not_wait_is_sent_by_who_asks(submitter: Submitter, client: Credits) -> None:
    client.may_go_on.set()
    senders: list[threading.Thread] = []
    submitter.put(0, client.sender("one"), lambda _: senders.append(threading.current_thread()), at_once=True)
    assert (client.order, senders) == (["one"], [threading.current_thread()])


def test_what_would_have_to_wait_takes_its_turn_and_nobody_overtakes_it(submitter: Submitter, client: Credits) -> None:
    done = threading.Event()
    submitter.put(0, client.sender("waits for a credit"), lambda _: None, at_once=True)
    assert client.waits.wait(60)
    submitter.put(0, client.sender("behind it"), lambda _: done.set(), at_once=True)
    assert client.order == []
    assert submitter.num_waiting == 2
    client.may_go_on.set()
    assert done.wait(60)
    assert client.order == ["waits for a credit", "behind it"]
    assert submitter.num_waiting == 0


def test_what_is_cancelled_while_it_waits_in_the_queue_is_never_sent(submitter: Submitter, client: Credits) -> None:
    submitter.put(0, client.sender("first"), lambda _: None)
    waiting = submitter.put(0, client.sender("cancelled"), lambda _: None)
    submitter.cancel(waiting, "id")
    done = threading.Event()
    submitter.put(0, client.sender("last"), lambda _: done.set())
    client.may_go_on.set()
    assert done.wait(60)
    assert client.order == ["first", "last"]
    eventually(lambda: client.cancelled, "another thread tells the client")
    assert client.cancelled == ["id"]


def test_what_is_cancelled_while_it_is_sent_has_its_future_cancelled(submitter: Submitter, client: Credits) -> None:
    sent: list[Future[Any]] = []
    done = threading.Event()
    first = submitter.put(0, client.sender("first"), sent.append)
    assert client.waits.wait(60)
    submitter.cancel(first, "id")
    submitter.put(0, client.sender("last"), lambda _: done.set())
    client.may_go_on.set()
    assert done.wait(60)
    assert sent[0].cancelled()


def test_what_sending_raises_is_the_requests_own(submitter: Submitter, client: Credits) -> None:
    def refuse(_may_wait: bool) -> Future[Any]:
        raise InvalidRequest("no")

    found: list[Future[Any]] = []
    done = threading.Event()
    client.may_go_on.set()
    submitter.put(0, refuse, found.append)
    submitter.put(0, client.sender("next"), lambda _: done.set())
    assert done.wait(60)
    assert isinstance(found[0].exception(), InvalidRequest)
    assert client.order == ["next"]


def test_what_threads_tell_arrives_in_order_with_few_wake_ups() -> None:
    async def run() -> tuple[list[Any], int]:
        loop = asyncio.get_running_loop()
        found: list[Any] = []
        done = asyncio.Event()
        crossing = Crossing(loop)

        def tell() -> None:
            for number in range(1000):
                crossing.call(found.append, number)
            crossing.call(lambda _: done.set(), None)

        with mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as woken:
            thread = threading.Thread(target=tell)
            thread.start()
            thread.join()  # the loop is busy meanwhile
            await done.wait()
        return found, woken.call_count

    found, wake_ups = asyncio.run(run())
    assert found == list(range(1000))
    assert wake_ups == 1


def test_a_loop_that_is_closed_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    crossing = Crossing(loop)
    loop.close()
    crossing.call(print, "nobody hears this")

import queue
from typing import Any

import pytest
from google.api_core.exceptions import RetryError, ServiceUnavailable

from millrace.transforms.addresses import PubSubAddress
from millrace.transforms.streams.pubsub.connection import Leases, Subscription


class Renewals:
    """What a subscription is asked to renew."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.now = 0.0
        self.error: Exception | None = None
        self.leases = Leases(self.renew, clock=lambda: self.now)

    def renew(self, ids: list[str]) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append(ids)

    def at(self, seconds: float) -> list[list[str]]:
        """What is renewed then."""
        self.now, self.asked = seconds, []
        self.leases.renew_due()
        return self.asked


def test_what_is_held_is_renewed_before_its_lease_is_over() -> None:
    renewals = Renewals()
    renewals.leases.hold(["a", "b"])
    assert renewals.at(0) == [["a", "b"]]
    assert renewals.at(30) == []
    assert renewals.at(55) == [["a", "b"]]


def test_what_is_let_go_is_not_renewed() -> None:
    renewals = Renewals()
    renewals.leases.hold(["a", "b"])
    renewals.leases.let_go(["a", "never held"])
    assert renewals.at(1) == [["b"]]


def test_what_has_no_answer_for_an_hour_is_let_go() -> None:
    renewals = Renewals()
    renewals.leases.hold(["a"])
    assert renewals.at(3599) == [["a"]]
    assert renewals.at(3601) == []
    assert renewals.at(4000) == []


def test_many_leases_are_renewed_by_several_requests() -> None:
    renewals = Renewals()
    renewals.leases.hold([str(number) for number in range(2500)])
    assert [len(ids) for ids in renewals.at(0)] == [1000, 1000, 500]


def test_a_renewal_that_fails_is_tried_again() -> None:
    renewals = Renewals()
    renewals.leases.hold(["a"])
    renewals.error = ServiceUnavailable("busy")  # type: ignore[no-untyped-call, unused-ignore]
    renewals.at(0)
    renewals.error = None
    assert renewals.at(4) == [["a"]]


@pytest.mark.parametrize("error", [RetryError("too long", None), RuntimeError("a surprise")])  # type: ignore[no-untyped-call, unused-ignore]
def test_a_renewal_that_fails_does_not_end_the_renewals(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.transforms.streams.pubsub.connection._RENEW_SECONDS", 0.01)
    asked = queue.SimpleQueue[list[str]]()

    def renew(ids: list[str]) -> None:
        asked.put(ids)
        raise error

    leases = Leases(renew)
    leases.hold(["a"])
    leases.start()
    assert [asked.get(timeout=30) for _ in range(3)] == [["a"]] * 3
    leases.stop()


class Client:
    """A SubscriberClient whose service does not answer while it is down."""

    def __init__(self) -> None:
        self.is_down = False
        self.asked: list[tuple[str, list[str]]] = []

    def acknowledge(self, **request: Any) -> None:
        self._answer("acknowledge", request)

    def modify_ack_deadline(self, **request: Any) -> None:
        self._answer(f"lease of {request['ack_deadline_seconds']}", request)

    def _answer(self, name: str, request: dict[str, Any]) -> None:
        assert request["retry"] is None, "the client's own retries hold up all others"
        if self.is_down:
            raise RetryError("Timeout of 60.0s exceeded", None)  # type: ignore[no-untyped-call, unused-ignore]
        self.asked.append((name, request["ack_ids"]))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A subscription's own thread renews nothing, however long the test takes."""
    client = Client()
    monkeypatch.setattr("millrace.transforms.streams.pubsub.connection._RENEW_SECONDS", 3600.0)
    monkeypatch.setattr("millrace.transforms.streams.pubsub.connection.SubscriberClient", lambda: client)
    return client


def test_an_acknowledgement_that_fails_goes_with_the_next(client: Client) -> None:
    session = Subscription(PubSubAddress("p", "subscriptions", "s"))
    session._leases.hold(["a", "b"])
    client.is_down = True
    session.acknowledge(["a"])
    assert session.owes
    client.is_down = False
    session._leases.renew_due()
    assert client.asked.pop() == ("lease of 60", ["a", "b"])
    session.acknowledge(["b"])
    assert client.asked == [("acknowledge", ["a", "b"])]
    assert not session.owes


def test_what_cannot_be_given_back_is_no_failure(client: Client) -> None:
    session = Subscription(PubSubAddress("p", "subscriptions", "s"))
    client.is_down = True
    session.give_back(["a"])
    client.is_down = False
    session.give_back(["a"])
    assert client.asked == [("lease of 0", ["a"])]

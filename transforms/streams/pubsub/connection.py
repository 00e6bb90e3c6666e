"""Clients of Pub/Sub in a worker process, and the errors where none can be made or an address names nothing.

A connection to a subscription is one client, and a thread that renews held messages.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.pubsub_v1 import SubscriberClient

from millrace.model_manager.wire.errors import ConfigError, MillraceError

from ...addresses import PubSubAddress
from ..unbounded import Finals

LEASE_SECONDS = 60
_RENEW_SECONDS = 4.0
"""Less than the shortest deadline that a subscription can have, of 10 s."""
_LONGEST_LEASE_SECONDS = 3600.0
_IDS_A_REQUEST = 1000
_AGAIN_SECONDS = 1.0
"""After a failure, before the next attempt."""
_TRANSIENT = (exceptions.ServerError, exceptions.Aborted, exceptions.TooManyRequests)
_log = logging.getLogger(__name__)
_Client = TypeVar("_Client")


class PubSubFailed(MillraceError):
    """Pub/Sub refused a request; the runner decides whether to try again."""


def client_of(address: PubSubAddress, make: Callable[[], _Client]) -> _Client:
    """What `make` makes. Raises ConfigError where neither credentials nor an emulator are to be had."""
    try:
        return make()
    except DefaultCredentialsError:
        raise ConfigError(
            f"{address}: this machine has no credentials for Google Cloud: name a key file by "
            "GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'; for an emulator, set "
            "PUBSUB_EMULATOR_HOST to its HOST:PORT"
        ) from None


@contextmanager
def said_of(address: PubSubAddress) -> Iterator[None]:
    """Raise ConfigError for what Pub/Sub does not have, or does not allow."""
    try:
        yield
    except exceptions.NotFound:
        what = "topic" if address.is_topic else "subscription"
        raise ConfigError(f"{address}: not found: there is no such {what}") from None
    except exceptions.Forbidden as error:
        raise ConfigError(f"{address}: {error.message}") from None


class Subscription:
    """This process's use of a subscription: one client, and a thread that renews what is held."""

    def __init__(
        self, subscription: PubSubAddress, *, late: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`late`: bundles are final as Flink has it."""
        self.finals = Finals(self.acknowledge, late=late)
        self._owed = dict[str, None]()
        self._lock = threading.Lock()
        self._address, self._subscription = subscription, subscription.path
        self._client = client_of(subscription, SubscriberClient)
        self._leases = Leases(self._renew_with(self._client, self._subscription), clock=clock)
        self._leases.start()
        weakref.finalize(self, self._leases.stop)

    @staticmethod
    def _renew_with(client: SubscriberClient, subscription: str) -> Callable[[list[str]], None]:
        def renew(ids: list[str]) -> None:
            client.modify_ack_deadline(
                subscription=subscription,
                ack_ids=ids,
                ack_deadline_seconds=LEASE_SECONDS,
                retry=None,  # the client's own would go on for a minute, in which all other leases are over
                timeout=_RENEW_SECONDS,
            )

        return renew

    def pull(self, count: int, seconds: float) -> list[Any]:
        """Pull at most `count` messages; wait `seconds` for one. Raises ConfigError if there is no subscription."""
        try:
            with said_of(self._address):
                answer = self._client.pull(
                    subscription=self._subscription, max_messages=count, retry=None, timeout=seconds
                )
        except exceptions.DeadlineExceeded:
            return []
        except _TRANSIENT as error:
            _log.warning("%s: %s; trying again", self._address, error.message)
            time.sleep(_AGAIN_SECONDS)
            return []
        received = list(answer.received_messages)
        self._leases.hold([each.ack_id for each in received])
        return received

    def acknowledge(self, ids: list[str]) -> None:
        """Acknowledge messages: they never come again. If Pub/Sub does not answer, they go with the next ones."""
        with self._lock:
            self._owed.update(dict.fromkeys(ids))
            owed = list(self._owed)
        for some in _chunks(owed):
            try:
                self._client.acknowledge(
                    subscription=self._subscription, ack_ids=some, retry=None, timeout=_RENEW_SECONDS
                )
            except exceptions.GoogleAPIError as error:
                _log.warning("%d messages are not acknowledged yet: %s", len(owed), error)
                return
            self._leases.let_go(some)
            with self._lock:
                for each in some:
                    self._owed.pop(each, None)

    @property
    def owes(self) -> bool:
        """Whether something is yet to be acknowledged."""
        return bool(self._owed)

    def give_back(self, ids: Iterable[str]) -> None:
        """Somebody else may have them, at once."""
        ids = list(ids)
        self._leases.let_go(ids)
        for some in _chunks(ids):
            try:
                self._client.modify_ack_deadline(
                    subscription=self._subscription,
                    ack_ids=some,
                    ack_deadline_seconds=0,
                    retry=None,
                    timeout=_RENEW_SECONDS,
                )
            except exceptions.GoogleAPIError as error:
                _log.warning("%d messages come again after their deadline only: %s", len(some), error)


class Leases(threading.Thread):
    """Renews the leases of the messages that a reader holds, until it releases them, or for an hour."""

    def __init__(self, renew: Callable[[list[str]], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="millrace-pubsub-leases", daemon=True)
        self._renew = renew
        self._clock = clock
        self._held: dict[str, _HeldMessage] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def hold(self, ids: list[str]) -> None:
        """Hold these messages from now on. Just pulled, they have their subscription's deadline, 10 s or more."""
        now = self._clock()
        with self._lock:
            self._held.update((each, _HeldMessage(until=now, since=now)) for each in ids)

    def let_go(self, ids: Iterable[str]) -> None:
        """Hold these messages no longer."""
        with self._lock:
            for each in ids:
                self._held.pop(each, None)

    def stop(self) -> None:
        """Renew nothing any more."""
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(_RENEW_SECONDS):
            try:
                self.renew_due()
            except Exception:
                _log.exception("leases were not renewed; trying again")

    def renew_due(self) -> None:
        """Renew what would be over before two more rounds."""
        now = self._clock()
        with self._lock:
            old = [each for each, lease in self._held.items() if now - lease.since > _LONGEST_LEASE_SECONDS]
            for each in old:
                del self._held[each]
            due = [each for each, lease in self._held.items() if lease.until - now < 2 * _RENEW_SECONDS]
        if old:
            _log.warning("%d messages were held for an hour without an answer: they come again", len(old))
        for some in _chunks(due):
            self._try_to_renew(some, now + LEASE_SECONDS)

    def _try_to_renew(self, ids: list[str], until: float) -> None:
        try:
            self._renew(ids)
        except exceptions.GoogleAPIError as error:
            _log.warning("the leases of %d messages could not be renewed: %s", len(ids), error)
            return
        with self._lock:
            for each in ids:
                if each in self._held:
                    self._held[each] = _HeldMessage(until, self._held[each].since)


class _HeldMessage(msgspec.Struct, frozen=True):
    until: float
    since: float


def _chunks(ids: list[str]) -> Iterator[list[str]]:
    for begin in range(0, len(ids), _IDS_A_REQUEST):
        yield ids[begin : begin + _IDS_A_REQUEST]

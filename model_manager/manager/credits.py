"""Credits: the requests that each client may have outstanding on one model. Knows no request, only their number.

One job may have outstanding what the engines can hold. Each of several may have twice that, so that requests of each
wait, and whose are next can be decided as engines take them (fair_shares.py). Among a job's clients this is shared
max-min fairly: none gets more than it has shown to use while another wants it, what nobody wants goes to all, and one
client alone gets everything.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

ACTIVE_FOR = 1.0
"""Seconds for which a client without a request still counts as one that has work: it is between two requests."""
AHEAD = 2
"""Factor on the credits of each of several jobs: requests of each wait for a turn while others fill the engines."""
IDLE_LIMIT = 2
"""Credits of a client without work; its first request makes it a client with work. When it uses both, credits are
divided again at once.
"""


def max_min_shares(capacity: int, demands: list[float]) -> list[int]:
    """Shares of `capacity`, each at least 1: the smallest demands are met, the rest is divided equally.

    What is left when every demand is met is divided equally too.
    """
    shares = [0] * len(demands)
    left = capacity
    order = sorted(range(len(demands)), key=lambda index: demands[index])
    for position, index in enumerate(order):
        shares[index] = int(min(demands[index], left // (len(order) - position)))
        left -= shares[index]
    for position, index in enumerate(order):
        shares[index] += left // (len(order) - position)
        left -= left // (len(order) - position)
    return [max(1, share) for share in shares]


@dataclass
class _Account:
    limit: int = 0
    outstanding: int = 0
    peak: int = 0
    """Most outstanding since the last division."""
    last_used: float = -math.inf
    job: str = ""
    """The job of its latest request."""


class CreditAccounts:
    """How many requests each client of one model has outstanding, and how many it may have."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._capacity = 0
        self.due = False
        """True if the credits should be divided again at once, not at the next tick."""

    def set_capacity(self, capacity: int) -> None:
        """Set how many requests the engines can hold. No client has credits before this is known."""
        self._capacity = capacity
        self.due = True

    def join(self, client: int) -> None:
        """A client opened the model. If it did so before, its limit is sent to it once more."""
        self._accounts.setdefault(client, _Account()).limit = 0
        self.due = True

    def leave(self, client: int) -> None:
        """A client is gone, and what it had outstanding with it."""
        if self._accounts.pop(client, None) is not None:
            self.due = True

    @property
    def given(self) -> int:
        """Requests that all clients together may have outstanding."""
        return sum(account.limit for account in self._accounts.values())

    @property
    def in_use(self) -> int:
        """Requests that all clients together have outstanding."""
        return sum(account.outstanding for account in self._accounts.values())

    def outstanding(self, client: int) -> int:
        """Requests that the client has sent and that are not answered."""
        return self._accounts[client].outstanding

    def take(self, client: int, now: float, job: str = "") -> None:
        """The client has sent a request of a job."""
        account = self._accounts[client]
        self.due = self.due or not self._is_active(account, now) or account.job != job
        account.job = job
        account.outstanding += 1
        self.due = self.due or account.outstanding == account.limit <= IDLE_LIMIT
        account.peak = max(account.peak, account.outstanding)
        account.last_used = now

    def give_back(self, client: int, now: float) -> None:
        """A request of the client was answered."""
        account = self._accounts[client]
        account.outstanding -= 1
        account.last_used = now
        assert account.outstanding >= 0, "more answers than requests"

    def divide(self, now: float) -> dict[int, int]:
        """New limits of the clients whose limit changes."""
        self.due = False
        if not self._capacity:
            return {}
        limits = dict.fromkeys(self._accounts, min(IDLE_LIMIT, self._capacity))
        jobs = self._active_by_job(now)
        of_job = self._capacity * (1 if len(jobs) == 1 else AHEAD)
        for clients in jobs:
            demands = [self._demand(self._accounts[client]) for client in clients]
            limits.update(zip(clients, max_min_shares(of_job, demands), strict=True))
        if len(limits) == 1:
            limits = dict.fromkeys(limits, self._capacity)
        return {client: limit for client, limit in limits.items() if self._set(client, limit)}

    def _active_by_job(self, now: float) -> Collection[list[int]]:
        jobs: dict[str, list[int]] = {}
        for client, account in self._accounts.items():
            if self._is_active(account, now):
                jobs.setdefault(account.job, []).append(client)
        return jobs.values()

    def _is_active(self, account: _Account, now: float) -> bool:
        return account.outstanding > 0 or now - account.last_used < ACTIVE_FOR

    def _demand(self, account: _Account) -> float:
        """A client that used its whole limit may want any number; any other may want twice what it used."""
        return math.inf if account.peak >= account.limit else max(IDLE_LIMIT, 2 * account.peak)

    def _set(self, client: int, limit: int) -> bool:
        account = self._accounts[client]
        account.peak = account.outstanding
        changed, account.limit = account.limit != limit, limit
        return changed

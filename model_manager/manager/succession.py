"""Models that take the places of others: loaded beside them where memory allows it, else after them.

    waiting ──fits beside──────────────────────────────────────────────────────► loading ──ready──► others are told
       └──does not──► the old takes no new requests ──ends those it has──► stops ──┘ (and starts again if this fails)

Nothing is done to a model whose clients have not agreed to it: those of a group leave it together. Where others use it
too, or its requests take too long, the new model is given up, and its clients are told so and go on as before. A part
of the router: without IO or clock of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..wire.config import ManagerConfig
from ..wire.errors import ModelDoesNotFit
from ..wire.messages import Replaced
from .engine_pool import RUNNING, State
from .memory import Memory
from .model import Model
from .outbox import Outbox

log = logging.getLogger(__name__)


@dataclass
class _Change:
    """A model on its way into the places of others."""

    since: float
    """When it was asked for, or got ready."""
    ready: bool = False
    after: bool = False
    """It is loaded while the others are not, and they take no new requests; else beside them."""
    told: set[int] = field(default_factory=set)
    """Clients that know that it is ready."""


class Succession:
    """Of one machine's models."""

    def __init__(self, models: Mapping[str, Model], memory: Memory, settings: ManagerConfig, outbox: Outbox) -> None:
        self._models = models
        self._memory = memory
        self._settings = settings
        self._outbox = outbox
        self._changes: dict[str, _Change] = {}
        self._wishes = 0

    def wished(self, model: Model) -> None:
        """A client leaves another for this one: from now on it gives way to none that was wished for before."""
        self._wishes += 1
        model.wish = self._wishes

    def settle(self, now: float) -> None:
        """Take each change as far as it goes by now."""
        for new in list(self._models.values()):
            if new.replaces:
                self._advance(new, self._changes.setdefault(new.key, _Change(now)), now)
        self._changes = {
            key: change for key, change in self._changes.items() if key in self._models and self._models[key].replaces
        }
        self._pause()

    def _advance(self, new: Model, change: _Change, now: float) -> None:
        if not new.users:
            self._take_back(new, change)
        elif new.state is State.WAITING:
            self._make_room(new, change, now)
        elif new.state is State.READY:
            self._hand_over(new, change, now)

    def _take_back(self, new: Model, change: _Change) -> None:
        """Those who asked for it want another, or are gone."""
        if change.after:
            new.unload_if_empty()  # at once: the model that it was to replace needs the room
        new.stop_waiting()

    def _make_room(self, new: Model, change: _Change, now: float) -> None:
        change.after = change.after or new.refused_beside
        old = [model for model in self._named(new) if model.state in RUNNING]
        if not old or (not change.after and self._fits_beside(new)):
            change.after = not old
            log.info("%s is loaded %s %s", new.key, "beside" if old else "after", ", ".join(sorted(new.replaces)))
            new.start(beside=bool(old))
        elif (refusal := self._refusal(new, old, change, now)) is not None:
            new.fail(refusal.info())
        else:
            change.after = True
            for model in old:
                model.unload_if_empty()

    def _fits_beside(self, new: Model) -> bool:
        running = [model.footprint for model in self._models.values() if model.state in RUNNING]
        return self._memory.allows(new.footprint, running)

    def _refusal(self, new: Model, old: Sequence[Model], change: _Change, now: float) -> ModelDoesNotFit | None:
        """Why no room can be made."""
        needs = f"{new.config.model} does not fit beside {', '.join(model.config.model for model in old)}"
        if any(model.wish > new.wish for model in old):
            return ModelDoesNotFit(f"{needs}, which was asked for since")
        if any(group not in new.groups for model in old for group in model.users.values()):
            return ModelDoesNotFit(f"{needs}, which others use too: end their jobs, or take a machine with more memory")
        if now - change.since > self._settings.drain_timeout:
            limit = f"drain_timeout = {self._settings.drain_timeout:g} s"
            return ModelDoesNotFit(f"{needs}, whose requests did not end within {limit}")
        return None

    def _hand_over(self, new: Model, change: _Change, now: float) -> None:
        """It is ready: the others' clients are to follow; those that cannot have their model back after a while."""
        if not change.ready:
            change.ready, change.since = True, now
        self._tell(new, change.told)
        for model in self._replaced(new):
            if not model.users:
                model.unload_if_empty()
            elif self._gives_way(model, new, change):
                model.send_on()
        is_done = not any(model.users or model.state in RUNNING for model in self._replaced(new))
        if is_done or now - change.since > self._settings.drain_timeout:
            new.stop_waiting()

    def _tell(self, new: Model, told: set[int]) -> None:
        assert new.client_config is not None, "who takes another's place has said what was asked for"
        for old in self._replaced(new):
            for client, group in old.users.items():
                if group in new.groups and client not in told:
                    told.add(client)
                    self._outbox.to_client(client, Replaced(old.key, new.client_config))

    def _pause(self) -> None:
        """Who gives way takes nothing new until its clients are gone, or the other has failed."""
        for model in self._models.values():
            model.pause(self.gives_way(model))

    def gives_way(self, old: Model) -> bool:
        """Whether a model is in the way of one that all its clients go to."""
        return any(
            self._gives_way(old, self._models[key], change)
            for key, change in self._changes.items()
            if key in self._models and old in self._replaced(self._models[key])
        )

    def _gives_way(self, old: Model, new: Model, change: _Change) -> bool:
        return change.after and all(group in new.groups for group in old.users.values())

    def _named(self, new: Model) -> list[Model]:
        """Those whose places it was to take."""
        return [self._models[key] for key in sorted(new.replaces) if key in self._models]

    def _replaced(self, new: Model) -> list[Model]:
        """Those that give way to it: that were not asked for since."""
        return [model for model in self._named(new) if model.wish < new.wish]

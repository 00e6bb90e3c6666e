"""Changes of models at random, by several clients of a job, while engines die and cannot be loaded.

However it goes, in the end every client that lives has a model that gives it credits, and every request its answer.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest

from millrace.model_manager.manager.outbox import Effect, Start, Stop, ToClient, ToEngine
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelCorrupt, ModelDoesNotFit
from millrace.model_manager.wire.messages import (
    Cancel,
    CloseModel,
    Credits,
    Failure,
    FinishReason,
    Message,
    ModelFailed,
    ModelReady,
    OpenModel,
    Output,
    Replaced,
    Results,
    StepReport,
    Submit,
)
from tests.model_manager.manager.router_world import INFO, model, output, request, router_with_room_for

MODELS = [model(f"m{index}") for index in range(4)]
BY_KEY = {config.key: config for config in MODELS}
STEPS = 120


@dataclass
class Client:
    """As the switch of a worker: one model for what comes, perhaps another that is being opened."""

    current: ModelConfig
    opening: ModelConfig | None = None
    opened: set[str] = field(default_factory=set)
    """Keys of the models that it has not closed."""
    owed: dict[str, set[str]] = field(default_factory=dict)
    """Requests on their way, by model."""
    again: list[str] = field(default_factory=list)
    """Requests that were sent back."""
    limits: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)


@dataclass
class Engine:
    ready: bool = False
    requests: set[str] = field(default_factory=set)


class Turmoil:
    """Clients, a router, and engines that keep accounts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        room = self.random.choice([1.5, 2.5])
        self.router = router_with_room_for(room)
        self.clients: dict[int, Client] = {}
        self.engines: dict[str, Engine] = {}
        self.submitted: Counter[int] = Counter()
        self.numbers = 0

    # ── what clients do ──

    def join(self) -> None:
        self.numbers += 1
        current = next((client.current for client in self.clients.values()), MODELS[0])
        self.router.connect(self.numbers, observer=False)
        self.clients[self.numbers] = Client(current)
        self.open(self.numbers, current, "")

    def open(self, number: int, config: ModelConfig, replaces: str) -> None:
        self.clients[number].opened.add(config.key)
        message = OpenModel(config, "/", group="job", replaces=replaces, client_config=config)
        self.router.open_model(number, message, self.now)

    def close(self, number: int, config: ModelConfig) -> None:
        self.clients[number].opened.discard(config.key)
        self.router.close_model(number, CloseModel(config.key), self.now)

    def ask(self, number: int, config: ModelConfig, *, is_wish: bool = True) -> None:
        client = self.clients[number]
        if config == client.opening:
            return
        self.abandon(number)
        if config != client.current and config.key not in client.opened:
            client.opening = config
            self.open(number, config, client.current.key if is_wish else "")

    def abandon(self, number: int) -> None:
        client = self.clients[number]
        if client.opening is not None:
            self.close(number, client.opening)
            client.opening = None

    def submit(self, number: int, name: str = "") -> bool:
        client, key = self.clients[number], self.clients[number].current.key
        owed = client.owed.setdefault(key, set())
        if key not in client.opened or len(owed) >= client.limits[key]:
            return False
        if not name:
            self.submitted[number] += 1
            name = f"{number}-{self.submitted[number]}"
        owed.add(name)
        self.router.submit(number, Submit(key, [request(name)]), self.now)
        return True

    def die(self, number: int) -> None:
        del self.clients[number]
        self.router.disconnect(number, self.now)

    # ── what clients hear ──

    def settle(self) -> None:
        for _ in range(50):
            effects = self.router.effects(self.now)
            for effect in effects:
                self._carry_out(effect)
            if not effects:
                break
        self.router.check_integrity()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(key):
                assert key not in self.engines, "a second engine of a model"
                self.engines[key] = Engine()
            case Stop(key):
                self.engines.pop(key, None)
            case ToEngine(key, Submit(_, requests)):
                assert self.engines[key].ready
                self.engines[key].requests |= {each.request_id for each in requests}
            case ToEngine(key, Cancel(_, names)):
                self.finish(key, names, FinishReason.ABORT)
            case ToClient(number, message) if number in self.clients:
                self._heard(number, message)

    def _heard(self, number: int, message: Message) -> None:
        client = self.clients[number]
        match message:
            case Credits(key, limit):
                client.limits[key] = limit
            case Replaced(_, config):
                if config != client.current:
                    self.ask(number, config, is_wish=False)
            case ModelReady(key):
                self._ready(number, key)
            case ModelFailed(key, error):
                self._failed(number, key, error.kind)
            case Results(key, outputs, failures):
                answers: list[Output | Failure] = [*outputs, *failures]
                for answer in answers:
                    self._answered(number, key, answer)

    def _ready(self, number: int, key: str) -> None:
        client = self.clients[number]
        if client.opening is not None and client.opening.key == key:
            client.current, client.opening = client.opening, None
        self.close_unused(number)

    def close_unused(self, number: int) -> None:
        client = self.clients[number]
        in_use = {client.current.key, client.opening.key if client.opening else ""}
        for key in [key for key in client.opened - in_use if not client.owed.get(key)]:
            self.close(number, BY_KEY[key])

    def _failed(self, number: int, key: str, kind: str) -> None:
        client = self.clients[number]
        client.opened.discard(key)
        client.again += sorted(client.owed.pop(key, ()))
        client.limits[key] = 0
        if client.opening is not None and client.opening.key == key:
            client.opening = None
        elif client.current.key == key and kind != "ModelReplaced":
            self.die(number)
        elif client.current.key == key and client.opening is None:
            self.open(number, client.current, "")  # as a session does that is asked for more

    def _answered(self, number: int, key: str, answer: Output | Failure) -> None:
        client = self.clients[number]
        client.owed[key].remove(answer.request_id)
        if isinstance(answer, Failure) and answer.error.kind == "ModelReplaced":
            client.again.append(answer.request_id)
        else:
            client.answered[answer.request_id] += 1
        self.close_unused(number)

    # ── what engines do ──

    def load(self, key: str) -> None:
        self.engines[key].ready = True
        self.router.engine_ready(key, msgspec.structs.replace(INFO, name=BY_KEY[key].model), self.now)

    def load_sometimes(self, key: str) -> None:
        chance = self.random.random()
        if chance < 0.2:
            self.refuse(key)
        elif chance < 0.6:
            self.load(key)

    def refuse(self, key: str) -> None:
        error = self.random.choice([ModelDoesNotFit("no room"), ModelCorrupt("damaged")])
        del self.engines[key]
        self.router.engine_failed(key, error.info())

    def finish(self, key: str, names: list[str], reason: FinishReason = FinishReason.LENGTH) -> None:
        known = [name for name in names if key in self.engines and name in self.engines[key].requests]
        for name in known:
            self.engines[key].requests.discard(name)
        if known:
            outputs = [output(name, [1], reason) for name in known]
            self.router.engine_report(key, StepReport(outputs=outputs), self.now)

    def kill(self, key: str) -> None:
        del self.engines[key]
        self.router.engine_died(key, "killed", hopeless=False, now=self.now)

    # ── chance, and the end ──

    def step(self) -> None:
        number = self.random.choice(list(self.clients)) if self.clients else 0
        key = self.random.choice(list(self.engines)) if self.engines else ""
        chance = self.random.random()
        if not number or (chance < 0.08 and len(self.clients) < 4):
            self.join()
        elif chance < 0.16:
            self.ask(number, self.random.choice(MODELS))
        elif chance < 0.22 and len(self.clients) > 1:
            self.die(number)
        elif chance < 0.45:
            self.submit(number)
        elif chance < 0.55:
            self.now += self.random.choice([0.1, 1.0, 6.0])
            self.router.tick(self.now)
        elif key and not self.engines[key].ready:
            self.load_sometimes(key)
        elif key and chance < 0.6:
            self.kill(key)
        elif key:
            self.finish(key, self.random.sample(sorted(self.engines[key].requests), k=len(self.engines[key].requests)))
        self.settle()

    def come_to_rest(self) -> None:
        for _ in range(60):
            for key in list(self.engines):
                if key in self.engines and not self.engines[key].ready:
                    self.load(key)
                    self.settle()
            for key in list(self.engines):
                if key in self.engines:
                    self.finish(key, sorted(self.engines[key].requests))
                    self.settle()
            for number, client in list(self.clients.items()):
                while client.again and self.submit(number, client.again[-1]):
                    client.again.pop()
            self.now += 0.3
            self.router.tick(self.now)
            self.settle()


@pytest.mark.parametrize("seed", range(100))
def test_every_request_is_answered_once_whatever_becomes_of_the_models(seed: int) -> None:
    made = Turmoil(seed)
    for _ in range(STEPS):
        made.step()
    made.come_to_rest()
    for number, client in made.clients.items():
        assert client.opening is None, "waits for a model for ever"
        assert client.limits[client.current.key] > 0, "has no credits"
        assert not any(client.owed.values()), "waits for an answer for ever"
        assert not client.again
        expected = Counter({f"{number}-{index + 1}": 1 for index in range(made.submitted[number])})
        assert client.answered == expected

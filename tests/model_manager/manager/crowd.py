"""A router with room for one model, for tests of several models."""

from __future__ import annotations

import msgspec

from millrace.model_manager.manager.memory_account import MACHINE
from millrace.model_manager.manager.memory_scheduler import MemoryScheduler
from millrace.model_manager.manager.outbox import Start, Stop, ToClient, ToEngine
from millrace.model_manager.manager.router import Router
from millrace.model_manager.store.memory import MemoryNeed
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.engine_messages import StepReport
from millrace.model_manager.wire.messages import Credits, ModelFailed, ModelReady, ModelWarnings, OpenModel, Submit
from millrace.model_manager.wire.status import ModelInfo, ModelStatus
from tests.model_manager.manager.machine import SETTINGS
from tests.model_manager.manager.router_world import INFO, output, request

A, B = (ModelConfig(model=name, backend="fake", max_num_seqs=4) for name in ("org/a", "org/b"))


class Crowd:
    """A router with room for one model, whose engines do what the test says."""

    def __init__(self, known: ModelInfo | None = None, need: int = 60) -> None:
        """`known`: what an earlier load of any model found; `need`: of 100, what an engine takes."""
        self.router = Router(
            SETTINGS,
            0.0,
            memory=MemoryScheduler({MACHINE: 100}, is_limited=True),
            estimate=lambda *_: MemoryNeed(need),
            find_known=lambda *_: known,
        )
        self.router.connect(1, observer=False)
        self.now = 0.0
        self.running: set[str] = set()
        self.given: dict[str, list[str]] = {}
        self.limits: dict[str, int] = {}
        self.warned: list[str] = []
        self.opened: list[str] = []
        self.refused: list[tuple[int, str]] = []
        """Clients, and the models that they were told have failed."""

    def open(self, config: ModelConfig, *, client: int = 1, on_demand: bool = False) -> None:
        self.router.open_model(client, OpenModel(config, "/", on_demand=on_demand), self.now)
        self.settle()

    def load(self, config: ModelConfig, info: ModelInfo = INFO) -> None:
        self.router.model(config.key).ready(0, info, self.now)
        self.settle()

    def submit(self, config: ModelConfig, *names: str, client: int = 1, job: str | None = None) -> None:
        """Requests of a client. Without `job`, each client has a job of its own."""
        asked = [msgspec.structs.replace(request(name), job=job or f"job {client}") for name in names]
        self.router.submit(client, Submit(config.key, asked), self.now)
        self.settle()

    def finish(self, config: ModelConfig, name: str) -> None:
        self.given[config.key].remove(name)
        self.router.model(config.key).report(0, StepReport(outputs=[output(name, [1])]), self.now)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(self.now)
        self.settle()

    def settle(self) -> None:
        for effect in self.router.effects(self.now):
            match effect:
                case Start(key):
                    assert not self.running, "two models at once"
                    self.running.add(key)
                    self.given[key] = []
                case Stop(key):
                    self.running.remove(key)
                    assert not self.given[key], "unloaded with requests"
                case ToClient(_, ModelWarnings(key)):
                    self.warned.append(key)
                case ToClient(_, ModelReady(key)):
                    self.opened.append(key)
                case ToClient(client, ModelFailed(key)):
                    self.refused.append((client, key))
                case ToClient(_, Credits(key, limit)):
                    self.limits[key] = limit
                case ToEngine(key, Submit(_, requests)):
                    self.given[key] += [each.request_id for each in requests]
        self.router.check_integrity()

    def status(self, config: ModelConfig) -> ModelStatus:
        (found,) = [model for model in self.router.models({}) if model.key == config.key]
        return found

"""The model's client while it is opened: there, on its way, tried again, or failed for good. No engine."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.errors import EngineError, ManagerUnavailable, ModelNotFound
from millrace.serving.requests.opening_client import OpeningClient


class Client:
    """What is opened."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_there_is_no_client_before_the_model_is_loaded() -> None:
    may_open, client = threading.Event(), Client()

    def opener(_: threading.Event) -> EngineClient:
        assert may_open.wait(60)
        return cast("EngineClient", client)

    engine = OpeningClient(opener)
    engine.start()
    with pytest.raises(ManagerUnavailable, match="not loaded yet"):
        _ = engine.client
    may_open.set()
    assert engine.opened.result(60) is cast("Any", client)
    engine.close()
    assert client.closed


def test_a_manager_that_is_not_there_is_asked_again_until_the_server_ends() -> None:
    tried = threading.Event()

    def opener(_: threading.Event) -> EngineClient:
        tried.set()
        raise ManagerUnavailable("no manager answers")

    engine = OpeningClient(opener)
    engine.start()
    assert tried.wait(60)
    engine.close()
    with pytest.raises(ManagerUnavailable, match="no manager answers"):
        _ = engine.client


@pytest.mark.parametrize(
    ("error", "told"), [(ModelNotFound("no such model"), ModelNotFound), (OSError("full"), EngineError)]
)
def test_a_model_that_cannot_be_loaded_is_told(error: Exception, told: type[Exception]) -> None:
    def opener(_: threading.Event) -> EngineClient:
        raise error

    engine = OpeningClient(opener)
    engine.start()
    assert isinstance(engine.opened.exception(60), told)
    engine.close()

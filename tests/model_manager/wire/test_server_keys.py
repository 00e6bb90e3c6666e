"""A key for a model's servers is the same where the job is and where its engines start, or the model is refused."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.server_keys import check_same_key, key_digest

OPTIONS: dict[str, dict[str, Any]] = {
    "endpoint": {"urls": "http://a", "key_env": "THE_KEY"},
    "server": {"preset": "vllm", "key_env": "THE_KEY"},
}


@pytest.mark.parametrize("backend", OPTIONS)
def test_another_jobs_key_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(model="m", backend=backend, backend_options=OPTIONS[backend])
    monkeypatch.setenv("THE_KEY", "one")
    digest = key_digest(config)
    assert "one" not in digest
    check_same_key(config, digest)
    for other in ("two", ""):
        monkeypatch.setenv("THE_KEY", other)
        with pytest.raises(ConfigError, match=r"^backend_options: key_env='THE_KEY': this machine's manager was"):
            check_same_key(config, digest)


def test_an_engine_of_this_machine_has_no_key() -> None:
    assert not key_digest(ModelConfig())

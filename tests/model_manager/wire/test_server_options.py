"""Options of a managed server: impossible ones are refused by name, presets give some that hold."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.server_options import parse
from millrace.model_manager.wire.server_presets import PRESETS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "command is missing"),
        ({"preset": "vlm"}, "did you mean vllm?"),
        ({"command": "run"}, "takes one with {port}"),
        ({"command": "run '{port}"}, "has an unclosed quote"),
        ({"preset": "vllm", "hang_timeout": 0}, "hang_timeout=0: takes a finite number above 0"),
        ({"preset": "vllm", "unhealthy_timeout": 0}, "unhealthy_timeout=0: takes a finite number above 0"),
        ({"preset": "vllm", "health": "/a b"}, "health='/a b': takes a route, such as /health"),
        ({"preset": "vllm", "health": "/é"}, "health='/é': takes a route, such as /health"),
        ({"preset": "vllm", "port": 70_000}, "port=70000: takes 0"),
        (
            {"preset": "vllm", "port": 8000, "grpc_port": 8000},
            "grpc_port=8000: takes another port than the option port",
        ),
        ({"preset": "vllm", "grpc_port": 70_000}, "grpc_port=70000: takes 0"),
        ({"preset": "triton", "grpc_port": 8001}, "grpc_port=8001: the preset triton starts its server without gRPC"),
        (
            {"command": "run {port} {grpc_port}", "dialect": "openai"},
            "dialect='openai': takes kserve over gRPC, which {grpc_port} in the command",
        ),
        ({"preset": "vllm", "retries": -1}, "retries=-1: takes 0 to 100"),
        ({"preset": "vllm", "urls": "http://a"}, "the back end endpoint takes urls"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(options)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_options_that_hold(name: str) -> None:
    options, connection = parse({"preset": name, "port": 8000})
    assert connection["dialect"] == PRESETS[name].dialect
    arguments = options.arguments("/models/a b", 8000, 2)
    assert any("/models/a b" in part for part in arguments)
    assert not any("{" in part for part in arguments)


def test_options_of_the_connection_are_taken_beside_a_preset() -> None:
    _, connection = parse({"preset": "vllm", "dialect": "openai-completions", "timeout": 5})
    assert (connection["dialect"], connection["timeout"]) == ("openai-completions", 5)
    assert "top_k" in connection["extra_parameters"]
    ModelConfig(model="m", backend="server", backend_options={"preset": "vllm", "retries": 1}, tensor_parallel=2)

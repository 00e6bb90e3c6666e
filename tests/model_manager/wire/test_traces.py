"""Destinations of spans: addresses of collectors and shares of rows."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from millrace.model_manager.wire import extras
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.extras import check_traces_extra
from millrace.model_manager.wire.traces import Traces


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_an_address_of_a_host_gets_the_route_of_traces(endpoint: str, url: str) -> None:
    assert Traces(endpoint=endpoint).url == url


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "grpc://host:4317", "http://", "http://host:99999"])
def test_what_is_no_url_is_refused_by_the_flags_name(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=rf"^otlp_endpoint='{endpoint}': takes a URL: http://HOST:4318$"):
        Traces(endpoint=endpoint)


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_nothing_and_all(ratio: float) -> None:
    with pytest.raises(ConfigError, match=r"^trace_ratio=\S+: takes 0 to 1$"):
        Traces(endpoint="http://a:1", ratio=ratio)


def test_a_missing_extra_is_one_sentence_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    check_traces_extra()

    def lacking(name: str) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(name)
        return importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "find_spec", lacking)
    with pytest.raises(ConfigError) as refused:
        check_traces_extra()
    said = str(refused.value)
    assert said.startswith("traces need opentelemetry.exporter.otlp.proto.http, which ")
    assert said.endswith(" lacks: pip install 'beam-millrace[traces]'")

"""Spans of HTTP requests: a caller's trace goes on through the server to the engine's requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.otlp import Collector, Received, collector
from tests.serving.servers import Server, fake_server
from tests.waiting import eventually

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "hush"


@pytest.fixture(scope="module")
def received() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, received: Collector) -> Iterator[Server]:
    flags = ["--otlp_endpoint", received.url, "--trace_ratio", "0"]
    with fake_server(tmp_path_factory.mktemp("serve") / "rt", *flags) as started:
        yield started


def asked(server: Server, received: Collector, sampled: str, **body: object) -> list[Received]:
    """The spans of one request of a caller who has decided whether it is traced."""
    before = len(received.spans)
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-{sampled}"}
    whole = {"prompt": SECRET, "max_tokens": 3} | body
    assert server.post("/v1/completions", whole, headers=headers).status_code == 200
    if sampled == "01":
        eventually(lambda: any(span.name.startswith("POST") for span in received.spans[before:]), "the spans")
    return received.spans[before:]


@pytest.mark.parametrize("stream", [False, True])
def test_a_callers_trace_goes_on_to_the_requests_of_the_engine(
    server: Server, received: Collector, stream: bool
) -> None:
    spans = asked(server, received, "01", prompt=[SECRET, "other"], stream=stream)
    (http,) = [span for span in spans if span.name == "POST /v1/completions"]
    below = [span for span in spans if span.name.startswith("text_completion")]
    assert (http.trace_id, http.parent_id, http.kind) == (TRACE, CALLER, 2)
    assert http.attributes["http.response.status_code"] == 200
    assert http.attributes["gen_ai.usage.output_tokens"] == 6
    assert {(span.trace_id, span.parent_id) for span in below} == {(TRACE, http.span_id)}
    assert len(below) == 2
    assert ("first_token" in http.event_names) is stream
    assert not any(SECRET.encode() in body for body in received.bodies)


def test_a_caller_who_does_not_trace_is_not_traced(server: Server, received: Collector) -> None:
    asked(server, received, "00")
    spans = asked(server, received, "01")  # spans are sent in order
    assert len([span for span in spans if span.name.startswith("POST")]) == 1

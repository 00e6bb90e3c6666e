"""Spans on their way to a collector, or to none: nobody waits for them for long, and one warning says what is lost."""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.model_manager.client import trace_export
from millrace.model_manager.client.trace_export import flush, tracer
from millrace.model_manager.wire.traces import Traces
from tests.servers.otlp import collector, hanging_collector
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector may be slower than a process waits for it at its end."""
    monkeypatch.setattr(trace_export, "_LAST_WITHIN", 300.0)


def test_spans_reach_the_collector_when_they_are_flushed() -> None:
    with collector() as found:
        traces = Traces(endpoint=found.url)
        with tracer(traces).start_as_current_span("outer"), tracer(traces).start_as_current_span("inner"):
            pass
        flush(traces)
        outer, inner = found.named("outer")[0], found.named("inner")[0]
        assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
        assert found.resources[0]["service.name"] == "millrace"


def test_threads_that_begin_together_export_together() -> None:
    with collector() as found:
        traces, together = Traces(endpoint=found.url), threading.Barrier(8)

        def row(number: int) -> None:
            together.wait()
            tracer(traces).start_span(f"row {number}").end()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(row, range(8)))
        flush(traces)
        assert sorted(span.name for span in found.named("row")) == [f"row {number}" for number in range(8)]


def test_a_share_of_nothing_sends_nothing() -> None:
    with collector() as found:
        traces = Traces(endpoint=found.url, ratio=0.0)
        tracer(traces).start_span("unseen").end()
        flush(traces)
        assert not found.spans


def test_a_collector_that_is_down_is_told_once_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "_TIMEOUT", 0.5)
    monkeypatch.setattr(trace_export, "_MOST_WAITING", 600)
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        traces = Traces(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with caplog.at_level(logging.WARNING):
            for _ in range(5000):
                tracer(traces).start_span("lost").end()
            flush(traces)
            eventually(lambda: caplog.records, "the warning")
            for _ in range(5000):
                tracer(traces).start_span("lost").end()
            flush(traces)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("millrace")]
    assert len(ours) == 1
    assert ours[0].startswith(f"traces: {traces.url} takes no spans: ")
    assert ".;" not in ours[0]
    assert ours[0].endswith("; they are dropped, and the job goes on")
    others = {record.name for record in caplog.records if not record.name.startswith("millrace")}
    assert not [name for name in others if "exporter" in name]


def test_a_collector_that_hangs_is_waited_for_once_and_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "_LAST_WITHIN", 0.01)
    with hanging_collector() as url, caplog.at_level(logging.WARNING):
        traces = Traces(endpoint=url)
        tracer(traces).start_span("lost").end()
        flush(traces)
        monkeypatch.setattr(trace_export, "_LAST_WITHIN", None)  # a second wait would have no end
        flush(traces)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"traces: {traces.url} has not taken the last spans within 0.01 s")


def test_of_a_long_reply_a_part_is_read() -> None:
    with collector(reply=bytes(64 << 20)) as found:
        traces = Traces(endpoint=found.url)
        for name in ("one", "two"):
            tracer(traces).start_span(name).end()
            flush(traces)
            assert found.named(name)
    assert found.whole_replies == 0


def test_a_flush_that_fails_does_not_end_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as found:
        traces = Traces(endpoint=found.url)
        provider = trace_export._exporting(traces).provider
        flushed, before = [], provider.force_flush

        def broken(*_: object) -> bool:
            flushed.append(1)
            raise ValueError("it is broken")

        monkeypatch.setattr(provider, "force_flush", broken)
        flush(traces)
        monkeypatch.setattr(provider, "force_flush", before)
        tracer(traces).start_span("later").end()
        flush(traces)
        assert flushed == [1]
        assert found.named("later")

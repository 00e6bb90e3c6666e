"""`--otlp_endpoint`: a real job whose spans reach a real collector."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client import trace_export
from millrace.pipelines.cli import dispatch
from tests.json_lines import write_rows
from tests.model_manager.backends.stand_in_server import Servers, serving
from tests.pipelines.refusals import Refused
from tests.servers.otlp import Collector, collector, hanging_collector

SECRET = "hush"
_PATIENCE = 300.0
_PATIENT = f"""
import sys
if "millrace.pipelines.runners.sdk_worker" in sys.orig_argv:
    from millrace.model_manager.client import trace_export
    trace_export._LAST_WITHIN = trace_export._TIMEOUT = {_PATIENCE}
"""


@pytest.fixture
def received() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in workers, spans wait for a collector that stands still."""
    for name in ("_LAST_WITHIN", "_TIMEOUT"):
        monkeypatch.setattr(trace_export, name, _PATIENCE)
    (at_start := tmp_path / "at_start").mkdir()
    (at_start / "sitecustomize.py").write_text(_PATIENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(at_start), os.environ.get("PYTHONPATH", "")]))


def job(folder: Path, *flags: str) -> list[str]:
    """A command with three rows; the last one has a parameter out of range."""
    rows = [{"id": f"row-{n}", "prompt": f"{SECRET} {n}", "max_tokens": 4} for n in range(3)]
    rows[2]["n"] = 2
    write_rows(folder / "rows.jsonl", rows)
    return ["run", "--input", f"{folder}/rows.jsonl", "--output", f"{folder}/out", "--overwrite", *flags]


@pytest.mark.usefixtures("shared_runtime", "patient")
def test_each_row_is_a_trace_with_its_requests_below(tmp_path: Path, received: Collector) -> None:
    workers = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    flags = ["--backend", "fake", "--ignore_eos", "--otlp_endpoint", received.url]
    assert dispatch(job(tmp_path, *flags, *workers)) == 0
    rows = {span.attributes["millrace.row.id"]: span for span in received.named("row generate")}
    assert sorted(rows) == ["row-0", "row-1", "row-2"]
    assert len({span.trace_id for span in rows.values()}) == 3
    requests = received.named("text_completion")
    by_parent = {name: [each for each in requests if each.parent_id == row.span_id] for name, row in rows.items()}
    assert [len(by_parent[name]) for name in sorted(rows)] == [1, 1, 2]
    for name, below in by_parent.items():
        for span in below:
            assert span.trace_id == rows[name].trace_id
            assert rows[name].start <= span.start <= span.end <= rows[name].end
            assert span.event_names == ["queued", "prefill", "decode"]
            assert span.attributes["gen_ai.usage.output_tokens"] == 4
            assert span.attributes["gen_ai.request.model"] == "millrace-tiny"
    assert not any(SECRET.encode() in body for body in received.bodies)


@pytest.mark.usefixtures("shared_runtime", "patient")
def test_a_failed_row_and_a_server_that_is_asked_again_are_seen(
    tmp_path: Path, received: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
    with serving() as servers:
        flags = ["--model", "m", "--endpoint", _busy_once(servers), "--traces"]
        assert dispatch(job(tmp_path, *flags)) == 0
    rows = {span.attributes["millrace.row.id"]: span for span in received.named("row generate")}
    assert {name: span.is_error for name, span in rows.items()} == {"row-0": True, "row-1": False, "row-2": False}
    assert rows["row-0"].attributes["error.type"] == "InvalidRequest"
    (again,) = [span for span in received.spans if span.parent_id == rows["row-1"].span_id]
    assert "sent_again" in again.event_names


def _busy_once(servers: Servers) -> str:
    """A server that refuses one row, and asks for another one twice."""

    def answer(prompt: str, tries: int) -> object:
        if prompt.endswith("0"):
            return 400, {}
        return (503, {}) if prompt.endswith("1") and tries == 1 else None

    return servers.start(answer).url


@pytest.mark.usefixtures("shared_runtime")
def test_a_collector_that_hangs_costs_the_job_one_warning_among_its_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_export, "_TIMEOUT", 60.0)  # else a job that stands still hears of a batch first
    with hanging_collector() as url:
        assert dispatch(job(tmp_path, "--backend", "fake", "--otlp_endpoint", url)) == 0
    said = capsys.readouterr().err
    (warning,) = [line for line in said.splitlines() if "traces: " in line]
    assert warning.startswith("W ")
    assert "has not taken the last spans within 2 s" in warning
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--otlp_endpoint", "here"], "--otlp_endpoint here: takes a URL: http://HOST:4318"),
        (["--traces"], "--traces: needs --otlp_endpoint URL, or the variable OTEL_EXPORTER_OTLP_ENDPOINT"),
        (["--trace_ratio", "0.5"], "--trace_ratio: needs --otlp_endpoint URL, or --traces"),
        (["--otlp_endpoint", "http://h:1", "--trace_ratio", "7"], "--trace_ratio 7: takes 0 to 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    flags: list[str], said: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert said in refused.run("--input", "rows.jsonl", *flags)

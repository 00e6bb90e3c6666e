"""Deaths in the middle of a batch: every request is answered once. A cancelled batch gives the answers it has."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from transformers import LlamaForCausalLM

from millrace.model_manager.client.status import stop_models
from millrace.model_manager.store import resolve
from tests.model_manager.engine import adapters_made_here
from tests.runtime_folders import processes_of
from tests.serving.batches.batch_files import batch, created, ended, line, rows_of
from tests.serving.servers import MODEL, Server, running
from tests.waiting import eventually

MANY = [line(f"row-{number}", prompt=f"p{number}", temperature=0, max_tokens=8) for number in range(1000)]
"""A hundred seconds of work."""
ROWS = MANY[:40]
FLAGS = ("--backend", "fake", "--max_num_seqs", "4", "--max_batches", "1", "--linger", "600")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    """The folder of an engine that takes 50 ms a token, for four requests at once; it outlives its server."""
    yield tmp_path / "rt"
    stop_models(tmp_path / "rt")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of the embedded model."""
    model: Any = LlamaForCausalLM.from_pretrained(resolve(MODEL), dtype=torch.float32)
    adapters_made_here.write(tmp_path / "spam", model, seed=1)
    return tmp_path / "spam"


def started(runtime: Path, *flags: str) -> contextlib.AbstractContextManager[Server]:
    return running(runtime, *FLAGS, *flags, MILLRACE_FAKE_STEP_SECONDS="0.05")


def ids_of(lines: list[dict[str, Any]]) -> set[str]:
    return {each["custom_id"] for each in lines}


def jobs_of(runtime: Path) -> list[psutil.Process]:
    """Processes of jobs."""
    found = []
    for process in processes_of(runtime):
        command = process.info["cmdline"] or []
        if "--resume" in command:
            found.append(process)
    return found


def is_further(server: Server, batch_id: str, than: int) -> bool:
    counts = batch(server, batch_id).request_counts
    return counts is not None and counts.completed >= than


def test_a_batch_goes_on_after_the_death_of_its_server(runtime: Path) -> None:
    with started(runtime) as server:
        batch_id = created(server.wait_until_ready(), ROWS)
        eventually(lambda: is_further(server, batch_id, 8), "it is begun")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(60)
        eventually(lambda: not jobs_of(runtime), "its job ends with it")
    with started(runtime) as server:
        done = ended(server.wait_until_ready(), batch_id)
        assert done.status == "completed"
        assert done.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
        rows = rows_of(server, done.output_file_id)
        assert rows.keys() == ids_of(ROWS)
        whole = server.post("/v1/completions", ROWS[3]["body"]).json()["choices"]
        assert rows["row-3"]["response"]["body"]["choices"] == whole
        status = server.status()
        assert [len(model.pids) for model in status.models] == [1], "server and jobs share an engine"
        jobs = [each for each in status.jobs if not each.job.startswith("serve")]
        assert [each.finished for each in jobs] == [len(ROWS)], "no row is computed twice"


def test_a_server_that_allows_less_delivers_what_an_earlier_one_accepted(runtime: Path, adapter: Path) -> None:
    lines = [line | {"body": line["body"] | {"model": (MODEL, "spam")[at % 2]}} for at, line in enumerate(ROWS)]
    with started(runtime, "--adapters", f"spam={adapter}") as server:
        first = created(server.wait_until_ready(), lines)
        eventually(lambda: is_further(server, first, 8), "it is begun")
        second = created(server, MANY)
        eventually(lambda: batch(server, second).request_counts.total == len(MANY), "its rows are written")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(60)
        eventually(lambda: not jobs_of(runtime), "its job ends with it")
    with started(runtime, "--max_loras", "1", "--max_tokens", "4", "--max_inflight", "1") as server:
        assert server.wait_until_ready().client().batches.cancel(second).status in ("cancelling", "cancelled")
        done = ended(server, first)
        assert (done.status, done.error_file_id) == ("completed", None)
        rows = rows_of(server, done.output_file_id)
        assert {name: row["response"]["body"]["model"] for name, row in rows.items()} == {
            each["custom_id"]: each["body"]["model"] for each in lines
        }
        assert {row["response"]["body"]["usage"]["completion_tokens"] for row in rows.values()} == {8}
        cancelled = rows_of(server, ended(server, second).error_file_id)
        assert {row["error"] and row["error"]["code"] for row in cancelled.values()} == {"batch_cancelled"}


def test_a_batch_that_is_cancelled_or_expires_delivers_what_is_done(runtime: Path) -> None:
    with started(runtime) as server:
        first = created(server.wait_until_ready(), MANY)
        second = created(server, MANY)
        eventually(lambda: is_further(server, first, 3), "it is begun")
        waiting = batch(server, second)
        assert waiting.status == "validating", "one runs at once"
        assert server.post("/v1/completions", ROWS[0]["body"]).status_code == 200
        assert batch(server, first).status == "in_progress", "a client's request did not wait for it"
        client = server.client()
        assert client.batches.cancel(second).status in ("cancelling", "cancelled")
        assert client.batches.cancel(first).status in ("cancelling", "cancelled")
        cancelled = ended(server, first)
        check_partial(server, cancelled, "cancelled", "batch_cancelled")
        assert cancelled.cancelling_at <= cancelled.cancelled_at
        assert not jobs_of(runtime)
        nothing = ended(server, second)
        assert (nothing.status, nothing.output_file_id) == ("cancelled", None)
        assert rows_of(server, nothing.error_file_id).keys() == ids_of(MANY)

        third = created(server, MANY)
        eventually(lambda: is_further(server, third, 3), "it is begun")
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    expire(runtime, third)
    with started(runtime) as server:
        check_partial(server, ended(server.wait_until_ready(), third), "expired", "batch_expired")


def check_partial(server: Server, found: Any, status: str, code: str) -> None:
    """Every request is in one of the two files."""
    assert found.status == status
    done, others = rows_of(server, found.output_file_id), rows_of(server, found.error_file_id)
    assert len(done) >= 3
    assert found.request_counts.completed == len(done)
    assert done.keys() | others.keys() == ids_of(MANY)
    assert not done.keys() & others.keys()
    assert {row["error"]["code"] for row in others.values()} == {code}


def expire(runtime: Path, batch_id: str) -> None:
    """Have the completion window of a batch be over."""
    (path,) = Path(f"{runtime}-files").glob(f"*/batches/{batch_id}/batch.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expires_at": 1}))

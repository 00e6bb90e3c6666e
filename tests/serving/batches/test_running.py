"""A batch with jobs that do what the test says: what it comes to when they fail, and what a request's error says."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.serving.batches import running
from millrace.serving.batches.batch_store import Batches, BatchFolder, next_id
from millrace.serving.batches.finishing import Finishing
from millrace.serving.batches.record import Batch
from millrace.serving.batches.running import BatchRun, Gates
from millrace.serving.files.file_store import OwnerFiles
from millrace.serving.requests.service import Service
from millrace.serving.settings import ServeConfig

ENDPOINT = "/v1/completions"
PROGRAM = """
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
used = {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 2}
def row(each):
    return {"id": each["id"], "text": each["prompt"].upper(), "finish_reason": "stop", "usage": used}
def letter(each):
    return {"id": each["id"], "error": sys.argv[4], "reason": "it is wrong"}
def write(name, made):
    with open(sys.argv[2] + name + "-00000-of-00001.jsonl", "a") as stream:
        stream.write(json.dumps(made) + "\\n")
"""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PAUSE", 0.0)
    monkeypatch.setattr(running, "_TRY_AGAIN", 0.0)


class Bench:
    """One batch and a service whose jobs are a program of the test's."""

    def __init__(self, folder: Path, program: str, error: str = "InvalidRequest") -> None:
        def job(command: str, more: Any) -> list[str]:
            assert command == "run"
            self.flags = list(more)
            given = dict(pairwise(more))
            assert "--keep_cut" in more
            return [sys.executable, "-c", PROGRAM + program, given["--input"], given["--output"], str(folder), error]

        served = SimpleNamespace(model="m", backend="fake", job=job, adapters={})
        self.service = SimpleNamespace(
            served=served,
            settings=ServeConfig(),
            engine=SimpleNamespace(client=SimpleNamespace()),
            adapter_of=lambda _name: "",
        )
        self.owner = folder / "owner"
        self.files = OwnerFiles(self.owner)

    def create(self, count: int) -> Batch:
        """A batch of so many requests."""
        with self.files.new() as new:
            for number in range(count):
                body = {"model": "m", "prompt": f"p{number}"}
                row = {"custom_id": f"c{number}", "method": "POST", "url": ENDPOINT, "body": body}
                new.stream.write(json.dumps(row).encode() + b"\n")
            file = new.keep("a", "batch")
        made = Batch(
            id=next_id(),
            endpoint=ENDPOINT,
            input_file_id=file.id,
            model="m",
            backend="fake",
            created_at=1,
            expires_at=2**40,
        )
        self.folder: BatchFolder = Batches(self.owner).create(made, self.files.content(file.id))
        self.files.delete(file.id)  # a batch has a copy
        return made

    def run(self, made: Batch) -> Batch:
        """The batch, once it is run."""
        asyncio.run(self._run(made))
        return self.found(made)

    def found(self, made: Batch) -> Batch:
        """The batch as it is now."""
        found = Batches(self.owner).get(made.id)
        assert found is not None
        return found

    async def _run(self, made: Batch) -> None:
        await BatchRun(self.owner, made, cast(Service, self.service), Gates(1)).run()

    def rows(self, file_id: str | None) -> list[Any]:
        """The lines of one of its files."""
        if file_id is None:
            return []
        return [json.loads(each) for each in self.files.content(file_id).read_text().splitlines()]


def test_a_batch_whose_job_cannot_run_fails_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "print('millrace: --model m: is gone', file=sys.stderr); sys.exit(2)")
    found = bench.run(bench.create(3))
    assert (found.status, found.output_file_id) == ("failed", None)
    assert [each.code for each in found.problems] == ["job_failed"]
    assert "--model m: is gone" in found.problems[0].message
    assert {row["error"]["code"] for row in bench.rows(found.error_file_id)} == {"batch_failed"}
    assert [each.name for each in bench.folder.path.iterdir()] == ["batch.json"]


def test_jobs_that_die_are_started_again_while_they_come_further(tmp_path: Path) -> None:
    program = """
import os
done = sys.argv[3] + "/done"
count = int(open(done).read()) if os.path.exists(done) else 0
write("", row(rows[count]))
open(done, "w").write(str(count + 1))
os.kill(os.getpid(), 9)
"""
    bench = Bench(tmp_path, program)
    found = bench.run(bench.create(8))
    assert (found.status, found.request_counts.completed, found.error_file_id) == ("completed", 8, None)
    rows = bench.rows(found.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"c{number}" for number in range(8)]
    assert [row["response"]["body"]["choices"][0]["text"] for row in rows] == [f"P{number}" for number in range(8)]
    assert found.usage is not None
    assert (found.usage["input_tokens"], found.usage["output_tokens"]) == (24, 16)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ("PromptTooLong", 400, "context_length_exceeded"),
        ("ConstraintNotMet", 400, "constraint_not_met"),
        ("DeadlineExceeded", 504, "deadline_exceeded"),
        ("UnreadableRow", 400, None),
    ],
)
def test_a_row_that_failed_has_its_endpoints_error(tmp_path: Path, error: str, status: int, code: str | None) -> None:
    bench = Bench(tmp_path, "write('', row(rows[0])); write('.dead_letters', letter(rows[1])); sys.exit(1)", error)
    found = bench.run(bench.create(2))
    assert (found.status, found.request_counts.completed, found.request_counts.failed) == ("completed", 1, 1)
    (row,) = bench.rows(found.error_file_id)
    assert (row["custom_id"], row["response"]["status_code"]) == ("c1", status)
    assert row["response"]["body"]["error"]["code"] == code
    assert "it is wrong" in row["response"]["body"]["error"]["message"]


def test_each_request_is_one_line_of_text_too(tmp_path: Path) -> None:
    said = "a\u0085b\u2028c\u2029d\x0b\x0c\x1c\x1d\x1e\r\n"
    bench = Bench(tmp_path, f"write('', row(rows[0]) | {{'text': {said!r}}})")
    found = bench.run(bench.create(1))
    (row,) = bench.rows(found.output_file_id)
    assert row["response"]["body"]["choices"][0]["text"] == said


def test_a_batch_that_another_server_runs_waits_for_the_end_of_that_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "sys.exit(2)")
    made = bench.create(1)
    tries, try_lock = [], BatchFolder.try_lock

    def counted(folder: BatchFolder) -> Any:
        tries.append(folder)
        return try_lock(folder)

    async def run() -> None:
        with bench.folder.try_lock() as is_ours:
            assert is_ours
            monkeypatch.setattr(BatchFolder, "try_lock", counted)
            task = asyncio.create_task(bench._run(made))
            while len(tries) < 3:
                await asyncio.sleep(0)
            assert bench.found(made).status == "validating"
        await task

    asyncio.run(run())
    assert bench.found(made).status == "failed"


ANSWERS = "write('', row(rows[0])); write('', row(rows[1]))"


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, ANSWERS)
    left, write = [1, 1, 1], Finishing.write

    def full(finishing: Finishing, *streams: Any) -> Any:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(finishing, *streams)

    monkeypatch.setattr(Finishing, "write", full)
    found = bench.run(bench.create(2))
    assert (found.status, found.request_counts.completed) == ("completed", 2)
    assert len(bench.rows(found.output_file_id)) == 2
    assert [each.name for each in bench.folder.path.iterdir()] == ["batch.json"]


def test_an_error_of_the_server_delivers_what_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, ANSWERS)
    follow = BatchRun._follow

    async def broken(run: BatchRun, progress: Any) -> None:
        await follow(run, progress)
        raise ValueError("it is broken")

    monkeypatch.setattr(BatchRun, "_follow", broken)
    found = bench.run(bench.create(3))
    assert (found.status, [each.code for each in found.problems]) == ("failed", ["internal_error"])
    assert [row["custom_id"] for row in bench.rows(found.output_file_id)] == ["c0", "c1"]
    assert [row["custom_id"] for row in bench.rows(found.error_file_id)] == ["c2"]
    assert [each.name for each in bench.folder.path.iterdir()] == ["batch.json"]


def test_what_cannot_be_delivered_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("it is broken")

    bench = Bench(tmp_path, ANSWERS)
    monkeypatch.setattr(Finishing, "write", broken)
    found = bench.run(bench.create(2))
    assert (found.status, found.output_file_id, found.error_file_id) == ("failed", None, None)
    assert [each.name for each in bench.folder.path.iterdir()] == ["batch.json"]


def test_a_cancelled_run_holds_the_lock_while_its_thread_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "sys.exit(2)")
    made = bench.create(1)
    writing, may_end = threading.Event(), threading.Event()

    def slow(*_: Any) -> int:
        writing.set()
        assert may_end.wait(60)
        return 1

    def is_locked() -> bool:
        with bench.folder.try_lock() as is_ours:
            return not is_ours

    async def run() -> None:
        task = asyncio.create_task(bench._run(made))
        assert await asyncio.to_thread(writing.wait, 60)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert is_locked()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_locked()

    monkeypatch.setattr(running, "validate", slow)
    asyncio.run(run())


def test_records_are_written_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, save = set(), BatchFolder.save

    def noted(folder: BatchFolder, *args: Any, **more: Any) -> None:
        threads.add(threading.get_ident())
        save(folder, *args, **more)

    bench = Bench(tmp_path, ANSWERS)
    made = bench.create(2)
    monkeypatch.setattr(BatchFolder, "save", noted)
    bench.run(made)
    assert threads
    assert threading.get_ident() not in threads


def test_a_job_writes_no_report(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ANSWERS)
    bench.run(bench.create(2))
    assert "--no-report" in bench.flags


def test_a_job_that_is_killed_is_told_as_killed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    found = bench.run(bench.create(1))
    assert "SIGKILL" in found.problems[0].message


def test_a_row_that_is_being_written_does_not_count(tmp_path: Path) -> None:
    program = """
import os
os.makedirs(sys.argv[2] + ".tmp/1", exist_ok=True)
stream = open(sys.argv[2] + ".tmp/1/completions-1.jsonl", "w")
stream.write(json.dumps(row(rows[0])) + "\\n" + json.dumps(row(rows[1]))[:-5])
"""
    bench = Bench(tmp_path, program)
    found = bench.run(bench.create(2))
    assert (found.status, found.request_counts.completed) == ("failed", 1)

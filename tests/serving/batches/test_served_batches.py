"""A server's start: batches of earlier servers go on, and no damaged file stops them."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.serving.batches.batch_store import Batches, next_id
from millrace.serving.batches.record import Batch
from millrace.serving.batches.served_batches import BatchRunner
from millrace.serving.files.file_store import OwnerFiles
from millrace.serving.requests.service import Service
from millrace.serving.settings import ServeConfig


def made(folder: Path, owner: str = "anyone", **changes: Any) -> Batch:
    """A batch with an empty input, whose run fails at once."""
    fields: dict[str, Any] = {
        "id": next_id(),
        "endpoint": "/v1/completions",
        "input_file_id": "file-0",
        "model": "m",
        "backend": "fake",
        "created_at": 1,
        "expires_at": 2**40,
    }
    batch = Batch(**fields | changes)
    content = folder / "content"
    content.touch()
    Batches(folder / owner).create(batch, content)
    return batch


def record(folder: Path, batch: Batch, owner: str = "anyone") -> Path:
    return folder / owner / "batches" / batch.id / "batch.json"


async def _resumed(folder: Path) -> None:
    opened: Future[Any] = Future()
    opened.set_result(None)
    service = SimpleNamespace(
        served=SimpleNamespace(model="m", backend="fake"),
        settings=ServeConfig(files_dir=str(folder)),
        engine=SimpleNamespace(client=SimpleNamespace(), opened=opened),
    )
    runner = BatchRunner(cast(Service, service))
    runner.start()
    while runner._tasks:
        await asyncio.wait([*runner._tasks])
    await runner.close()


def resume(folder: Path) -> None:
    """Start a server on the folder, and wait until all its batches have ended."""
    asyncio.run(_resumed(folder))


def status(folder: Path, batch: Batch, owner: str = "anyone") -> str | None:
    found = Batches(folder / owner).get(batch.id)
    return found.status if found else None


@pytest.mark.parametrize("damage", [b"", b'{"id": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_record_is_left_out_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes) -> None:
    good, bad = made(tmp_path), made(tmp_path)
    record(tmp_path, bad).write_bytes(damage)
    assert Batches(tmp_path / "anyone").all() == [good]
    assert bad.id in caplog.text
    resume(tmp_path)
    assert status(tmp_path, good) == "failed", "it is run: its file is empty"


def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    files, ids = OwnerFiles(tmp_path), []
    for _ in range(2):
        with files.new() as new:
            ids.append(new.keep("a", "batch").id)
    (tmp_path / "files" / ids[0] / "file.json").write_bytes(b"{")
    assert [each.id for each in files.all()] == ids[1:]
    assert files.get(ids[0]) is None


def test_an_owner_that_cannot_be_read_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = made(tmp_path, "key-b")
    (tmp_path / "key-a" / "batches").mkdir(parents=True)
    before = Batches.all

    def unreadable(batches: Batches) -> list[Batch]:
        if "key-a" in str(batches.folder("x").path):
            raise PermissionError(13, "Permission denied")
        return before(batches)

    monkeypatch.setattr(Batches, "all", unreadable)
    resume(tmp_path)
    assert status(tmp_path, good, "key-b") == "failed"
    assert "key-a" in caplog.text


def test_an_upload_that_ends_meanwhile_does_not_end_the_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = made(tmp_path)
    gone = tmp_path / "anyone" / "files" / ".new-gone"
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: iter([gone]))
    OwnerFiles(tmp_path / "anyone").remove_abandoned()
    monkeypatch.undo()
    resume(tmp_path)
    assert status(tmp_path, good) == "failed"


def test_an_error_that_ends_a_task_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_runner: BatchRunner) -> list[Any]:
        raise ValueError("it is broken")

    monkeypatch.setattr(BatchRunner, "_left", broken)
    with caplog.at_level(logging.ERROR):
        resume(tmp_path)
    assert "it is broken" in caplog.text


def test_what_a_killed_server_left_of_an_ended_batch_is_removed(tmp_path: Path) -> None:
    over = made(tmp_path, status="completed")
    folder = record(tmp_path, over).parent
    (folder / "answers.tmp").mkdir()
    resume(tmp_path)
    assert [each.name for each in folder.iterdir()] == ["batch.json"]
    assert status(tmp_path, over) == "completed"

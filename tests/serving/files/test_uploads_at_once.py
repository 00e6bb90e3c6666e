"""Uploads that are on their way: how many there are, what room they have together, and how long they may take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from millrace.serving.files.disk import bytes_in, sortable_id
from millrace.serving.files.owners import files_folder
from millrace.serving.files.space import MOST_FILES, Space
from millrace.serving.http.http_errors import HttpError
from millrace.serving.settings import ServeConfig
from tests.serving.servers import Server, fake_server
from tests.waiting import eventually

HEAD = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: multipart/form-data; boundary=edge"
BEGIN = b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
BEGIN += b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b"\r\n--edge--\r\n"
MIB = 2**20


@contextlib.contextmanager
def begun(server: Server, length: int) -> Iterator[socket.socket]:
    """An upload of a file of so many bytes, none of them sent."""
    with socket.create_connection(("127.0.0.1", server.port), 60) as sock:
        body = len(BEGIN) + length + len(END)
        sock.sendall(f"{HEAD}\r\ncontent-length: {body}\r\n\r\n".encode() + BEGIN)
        yield sock


def coming_in(server: Server) -> int:
    """Uploads that have a folder."""
    return len([*Path(f"{server.runtime}-files").glob("*/files/.new-*")])


def uploaded(server: Server, content: bytes, address: str = "127.0.0.1") -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=60) as client:
        return client.post(f"{server.url}/v1/files", files={"file": ("a", content)}, data={"purpose": "batch"})


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_uploads_beyond_the_limit_are_refused_and_another_client_has_one(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--max_uploads", "2") as server:
        with begun(server, 10), begun(server, 10):
            eventually(lambda: coming_in(server) == 2)
            refused = uploaded(server, b"a")
            assert refusal(refused) == (429, "too_many_uploads")
            assert "--max_uploads" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 0
            assert uploaded(server, b"a", "127.0.0.2").status_code == 200
        eventually(lambda: uploaded(server, b"a").status_code == 200)


def test_uploads_at_once_do_not_pass_the_bound_of_the_disk_together(tmp_path: Path) -> None:
    flags = ("--max_files_gib", str(3 / 1024), "--max_file_mib", "2")
    with fake_server(tmp_path / "rt", *flags) as server:
        with begun(server, 2 * MIB) as first, begun(server, 2 * MIB) as second:
            select.select((first, second), (), (), 60)  # one of them is refused before either goes on
            answers = {}
            for sock in (first, second):
                with contextlib.suppress(ConnectionError):
                    sock.sendall(b"a" * 2 * MIB + END)
            for sock in (first, second):
                head = sock.recv(12)
                answers[head] = head + sock.recv(MIB)
        assert sorted(answers) == [b"HTTP/1.1 200", b"HTTP/1.1 429"]
        assert b"\r\nretry-after: " in answers[b"HTTP/1.1 429"]
        assert b"--max_files_gib" in answers[b"HTTP/1.1 429"]
        assert uploaded(server, b"a" * (MIB // 2)).status_code == 200


@pytest.mark.parametrize(
    ("bound", "status", "code"),
    [("--max_file_mib=1", 413, "file_too_large"), (f"--max_files_gib={1 / 1024}", 400, "storage_full")],
)
def test_an_upload_whose_declared_length_is_too_large_is_refused_before_it_is_sent(
    tmp_path: Path, bound: str, status: int, code: str
) -> None:
    with fake_server(tmp_path / "rt", bound) as server, begun(server, 2 * MIB) as sock:
        answer = sock.makefile("rb").read()  # it closes the connection
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == code
        assert bound.partition("=")[0] in error["message"]
        assert coming_in(server) == 0


def test_an_upload_that_comes_byte_by_byte_is_given_up(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt", "--body_timeout", "0.3") as server, begun(server, MIB) as sock:
        sock.settimeout(0.01)
        answer = b""
        while not answer:
            with contextlib.suppress(ConnectionError):  # it is given up, and the answer is there
                sock.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                answer = sock.recv(2**16)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "upload_too_slow"
        eventually(lambda: coming_in(server) == 0)


def test_one_key_has_a_limited_number_of_files(tmp_path: Path) -> None:
    with fake_server(tmp_path / "rt") as server:
        made = uploaded(server, b"a").json()["id"]
        files = Path(f"{server.runtime}-files") / "anyone/files"
        for _ in range(MOST_FILES - 1):
            (files / sortable_id("file-")).mkdir()
        assert refusal(uploaded(server, b"a")) == (400, "too_many_files")
        batch = {"input_file_id": made, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert refusal(server.post("/v1/batches", batch)) == (400, "too_many_files")
        assert httpx.delete(f"{server.url}/v1/files/{made}").status_code == 200
        assert uploaded(server, b"a").status_code == 200


def test_files_of_one_byte_count_as_the_disk_has_them(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a")
    blocks = (tmp_path / "one").stat().st_blocks * 512
    (tmp_path / "one").unlink()
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"a")
    assert bytes_in(tmp_path) >= 100 * max(1, blocks)


def test_the_disk_is_looked_at_once_for_many_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def found(folder: Path, _without: object) -> int:
        looked.append(folder)
        return MIB

    async def upload(space: Space, number: int) -> None:
        await space.look()
        with space.room(str(number), 10):
            pass
        space.added(MIB)

    async def run() -> None:
        settings = ServeConfig(files_dir=str(tmp_path), max_files_gib=50 / 1024)
        now = 0.0
        space = Space(settings, lambda: now)
        await asyncio.gather(*(upload(space, number) for number in range(49)))
        assert looked == [files_folder(settings)]
        with pytest.raises(HttpError, match="delete some"):
            await upload(space, 49)
        space.removed(MIB)
        await upload(space, 50)
        assert len(looked) == 1
        now = 10.0
        await space.look()
        assert len(looked) == 2

    monkeypatch.setattr("millrace.serving.files.space.bytes_in", found)
    asyncio.run(run())

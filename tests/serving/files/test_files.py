"""`/v1/files`, asked by OpenAI's own client: files come back as they were, to whoever sent them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from millrace.serving.files.file_store import OwnerFiles
from tests.serving.servers import Server, fake_server, peak_memory
from tests.waiting import eventually

PIECE = bytes(range(256)) * 1024
PIECES = 800
"""Number of times that a large upload repeats PIECE: 200 MiB."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes files of up to 1 MiB, 3 MiB in all, from two keys."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text("one\ntwo\n")
    flags = ("--api_key_file", str(folder / "keys"), "--max_file_mib", "1", "--max_files_gib", str(3 / 1024))
    with fake_server(folder / "rt", *flags) as server:
        yield server


def uploaded(server: Server, content: bytes, key: str = "none", name: str = "a.jsonl") -> Any:
    return server.client(key).files.create(file=(name, content), purpose="batch")


def test_a_file_comes_back_as_it_was(server: Server) -> None:
    files, content = server.client().files, b'{"a": "\xc3\xa4"}\r\n\x00\n'
    made = uploaded(server, content, name="täg.jsonl")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(content), "täg.jsonl", "batch")
    assert files.retrieve(made.id) == made
    assert files.content(made.id).content == content
    assert made in files.list().data
    assert files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        files.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        files.content(made.id)


def test_lists_are_turned_page_by_page(server: Server) -> None:
    made = [uploaded(server, b"%d" % number).id for number in range(5)]
    listed = [each.id for each in server.client().files.list(limit=2)]
    assert listed[:5] == made[::-1]
    assert [each.id for each in server.client().files.list(limit=2, order="asc")][-5:] == made
    first = server.client().files.list(limit=2)
    assert (len(first.data), first.has_more) == (2, True)
    assert list(server.client().files.list(purpose="batch_output")) == []


def test_of_two_servers_that_make_one_file_the_first_one_keeps_it(tmp_path: Path) -> None:
    files = OwnerFiles(tmp_path)
    with files.new() as first, files.new(first.id) as second:
        first.stream.write(b"1")
        second.stream.write(b"2")
        assert first.keep("a", "batch").id == second.keep("a", "batch").id
    assert files.content(first.id).read_bytes() == b"1"
    assert [each.name for each in (tmp_path / "files").iterdir()] == [first.id]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "after=file-1", "order=up"])
def test_a_bad_page_is_refused(server: Server, query: str) -> None:
    answer = httpx.get(f"{server.url}/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("name", ["file-1", "..", ".new-file-0", "%2e%2e%2f%2e%2e%2fetc"])
def test_no_name_leads_to_another_folder(server: Server, name: str) -> None:
    for path in (name, f"{name}/content"):
        assert httpx.get(f"{server.url}/v1/files/{path}").status_code == 404
    assert httpx.delete(f"{server.url}/v1/files/{name}").status_code in (404, 405)


def test_other_purposes_and_forms_are_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="takes batch"):
        server.client().files.create(file=b"x", purpose="assistants")
    answer = httpx.post(f"{server.url}/v1/files", json={"purpose": "batch"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    more = {"purpose": "batch", "expires_after[seconds]": "3600"}
    answer = httpx.post(f"{server.url}/v1/files", data=more, files={"file": b"x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")


def test_a_compressed_body_is_refused_as_elsewhere(server: Server) -> None:
    form, headers = {"file": ("a.jsonl", b"{}")}, {"content-encoding": "gzip"}
    answer = httpx.post(f"{server.url}/v1/files", files=form, data={"purpose": "batch"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")


def test_a_boundary_that_is_too_long_is_refused(server: Server) -> None:
    headers = {"content-type": f"multipart/form-data; boundary={'x' * 5000}"}
    answer = httpx.post(f"{server.url}/v1/files", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")


def test_one_key_does_not_see_the_files_of_another(keyed: Server) -> None:
    made = uploaded(keyed, b"secret", "one")
    assert made.id in [each.id for each in keyed.client("one").files.list()]
    others = keyed.client("two").files
    assert list(others.list()) == []
    for ask in (others.retrieve, others.content, others.delete):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    assert keyed.client("one").files.content(made.id).content == b"secret"
    with pytest.raises(openai.AuthenticationError):
        keyed.client("three").files.list()


def test_files_are_kept_up_to_a_bound(keyed: Server) -> None:
    for length in (2**20 + 1, 2**23):
        with pytest.raises(openai.APIStatusError, match="--max_file_mib") as refused:
            uploaded(keyed, b"x" * length, "one")
        assert refused.value.status_code == 413
    made = [uploaded(keyed, b"x" * 2**20, "one").id for _ in range(2)]
    with pytest.raises(
        openai.APIStatusError, match=r"max_files_gib.*larger than the 0\.\d+ MiB that are left"
    ) as refused:
        uploaded(keyed, b"x" * 2**20, "two")
    assert (refused.value.status_code, refused.value.code) == (400, "storage_full")
    for each in made:
        keyed.client("one").files.delete(each)
    last = uploaded(keyed, b"x" * 2**20, "two").id
    with pytest.raises(openai.APIStatusError, match=r"max_files_gib.*3 times its input's size, 3 MiB") as refused:
        keyed.client("two").batches.create(input_file_id=last, endpoint="/v1/completions", completion_window="24h")
    assert refused.value.code == "storage_full"


def test_an_upload_that_is_cut_off_leaves_nothing(keyed: Server) -> None:
    folder = Path(f"{keyed.runtime}-files")

    def parts() -> Iterator[bytes]:
        yield b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nxxxx'
        raise ConnectionError("the client is gone")

    headers = {"authorization": "Bearer one", "content-type": "multipart/form-data; boundary=edge"}
    with pytest.raises(ConnectionError):
        httpx.post(f"{keyed.url}/v1/files", content=parts(), headers=headers)
    eventually(lambda: not list(folder.glob("*/files/.new-*")), "what had come is removed")
    assert (folder.stat().st_mode & 0o777) == 0o700


def test_a_large_file_passes_through_little_memory(server: Server) -> None:
    def parts() -> Iterator[bytes]:
        yield b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--edge\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n'
        for _ in range(PIECES):
            yield PIECE
        yield b"\r\n--edge--\r\n"

    before = peak_memory(server)
    kind = {"content-type": "multipart/form-data; boundary=edge"}
    made = httpx.post(f"{server.url}/v1/files", content=parts(), headers=kind, timeout=120).json()
    assert made["bytes"] == PIECES * len(PIECE)
    expected, got = hashlib.sha256(PIECE * 4), hashlib.sha256()
    for _ in range(PIECES // 4 - 1):
        expected.update(PIECE * 4)
    with httpx.stream("GET", f"{server.url}/v1/files/{made['id']}/content", timeout=120) as answer:
        for piece in answer.iter_raw():
            got.update(piece)
    assert got.digest() == expected.digest()
    assert peak_memory(server) - before < 50 * 2**20
    server.client().files.delete(made["id"])

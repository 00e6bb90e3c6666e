"""Reading from a store that gives less, or other bytes, than it holds."""

import base64
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

import google_crc32c
import pytest
from apache_beam.io.filesystem import FileMetadata, FileSystem

from millrace.model_manager.wire.errors import StorageError
from millrace.transforms.files import object_reads, object_stores
from millrace.transforms.files.object_reads import BLOCK_BYTES, Fingerprint, open_file
from millrace.transforms.files.object_stores import repeated

PATH = "flaky://folder/file"
CONTENT = bytes(range(256)) * 10_000
"""Two and a half blocks."""


class Flaky(FileSystem):
    """One file; each time that it is opened it has the next of `contents`, and the last of them from then on."""

    contents: ClassVar[list[bytes]] = []
    opened: ClassVar[int] = 0

    @classmethod
    def scheme(cls) -> str:
        return "flaky"

    def open(self, *_: Any, **__: Any) -> BinaryIO:
        content = self.contents[min(Flaky.opened, len(self.contents) - 1)]
        Flaky.opened += 1
        return io.BytesIO(content)

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, len(CONTENT))

    def _unsupported(self, *_: Any) -> Any:
        raise NotImplementedError

    join = split = mkdirs = has_dirs = _list = create = copy = rename = exists = size = _unsupported
    last_updated = checksum = delete = _unsupported


@pytest.fixture(autouse=True)
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Flaky]]:
    monkeypatch.setattr(object_stores, "_PAUSES", (0.0, 0.0))
    Flaky.contents, Flaky.opened = [CONTENT], 0
    yield Flaky
    Flaky.contents = []


def altered(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def fingerprint(content: bytes = CONTENT) -> Fingerprint:
    blocks = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    return Fingerprint(len(content), b"".join(google_crc32c.value(block).to_bytes(4, "big") for block in blocks))


def test_a_file_is_read_as_any_other() -> None:
    with open_file(PATH) as stream:
        assert stream.read(10) == CONTENT[:10]
        assert stream.seek(-3, io.SEEK_END) == len(CONTENT) - 3
        assert stream.read() == CONTENT[-3:]
        assert stream.read(1) == b""
        stream.seek(BLOCK_BYTES - 2)
        assert stream.read(4) == CONTENT[BLOCK_BYTES - 2 : BLOCK_BYTES + 2]
        stream.seek(0)
        assert stream.read() == CONTENT


@pytest.mark.parametrize("length", [0, 100, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_an_early_end_is_no_end(flaky: type[Flaky], length: int) -> None:
    flaky.contents = [CONTENT[:length], CONTENT[:length], CONTENT]
    with open_file(PATH) as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize("known", [None, fingerprint()])
def test_a_file_that_stays_too_short_is_named(flaky: type[Flaky], known: Fingerprint | None) -> None:
    flaky.contents = [CONTENT[:100]]
    with (
        open_file(PATH, known) as stream,
        pytest.raises(StorageError, match=f"^{PATH}: bytes 0 to {BLOCK_BYTES} do not"),
    ):
        stream.read()


def test_altered_bytes_are_fetched_again_before_any_is_given(flaky: type[Flaky]) -> None:
    flaky.contents = [altered(CONTENT, BLOCK_BYTES + 7), CONTENT]
    with open_file(PATH, fingerprint()) as stream:
        stream.seek(BLOCK_BYTES + 5)
        assert stream.read(5) == CONTENT[BLOCK_BYTES + 5 : BLOCK_BYTES + 10]
    assert flaky.opened == 2


def test_bytes_that_stay_altered_are_told(flaky: type[Flaky]) -> None:
    flaky.contents = [altered(CONTENT, 7)]
    with open_file(PATH, fingerprint()) as stream, pytest.raises(StorageError, match=r"overwritten .* or is damaged"):
        stream.read(1)


def test_a_whole_file_is_compared_with_the_stores_checksum_at_its_end(
    flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = base64.b64encode(google_crc32c.value(CONTENT).to_bytes(4, "big")).decode()
    stored = object_reads._Stored(len(CONTENT), checksum)
    monkeypatch.setattr(object_reads, "_look_up", lambda _path: stored)
    with open_file(PATH) as stream:
        stream.read(3)
        stream.seek(1)
        assert stream.read() == CONTENT[1:]
    flaky.contents = [altered(CONTENT, len(CONTENT) - 1)]
    with open_file(PATH) as stream:
        stream.read(2 * BLOCK_BYTES)
        with pytest.raises(StorageError, match="does not match its checksum"):
            stream.read()


def test_what_may_pass_is_tried_again_and_told_if_it_does_not() -> None:
    attempts: list[int] = []

    def action() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("half an answer")
        return len(attempts)

    assert repeated(PATH, "listed", action) == 3
    with pytest.raises(StorageError, match=f"^{PATH}: cannot be listed: ValueError: half an answer$"):
        repeated(PATH, "listed", _fail)


def _fail() -> int:
    raise ValueError("half an answer")


def test_on_a_disk_errors_are_as_they_are() -> None:
    with pytest.raises(ValueError, match="half an answer"):
        repeated("/folder/file", "listed", _fail)

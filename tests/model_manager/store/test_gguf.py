"""GGUF files as models: their names, their headers, their revisions."""

import struct
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from millrace.model_manager.store.gguf import read_gguf
from millrace.model_manager.store.revisions import check_revision, revision_of
from millrace.model_manager.store.sources import source_of
from millrace.model_manager.wire.errors import ConfigError, ModelCorrupt, ModelNotFound
from tests.model_manager.backends.gguf_files import write_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny-q4_0.gguf", "q4_0")


def test_a_file_resolves_to_the_folder_that_holds_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    for name in (str(model), model.name, f"./{model.name}"):
        assert resolve(name) == model.parent


def test_a_header_tells_what_the_model_is(model: Path) -> None:
    header = read_gguf(model)
    assert header.of_model("context_length") == 1024
    assert header.of_model("attention.head_count_kv") == 3
    assert header.fields["tokenizer.ggml.tokens"] == 1536
    assert header.offsets[0] == header.size
    assert len(header.offsets) == 6 * 9 + 2


def test_a_near_miss_gets_a_hint(model: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such file: did you mean tiny-q4_0\.gguf\?"):
        resolve(str(model.with_name("tiny-q4_1.gguf")))


def test_a_revision_of_a_file_here_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="revision='main'"):
        resolve(str(model), "main")


@pytest.mark.parametrize("kept", [0, 3, 20, 4_000, 300_000])
def test_a_cut_file_is_corrupt(model: Path, kept: int) -> None:
    model.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(ModelCorrupt, match=r"fetch it again"):
        resolve(str(model))


@pytest.mark.parametrize("place", [4, 8, 16, 24])
def test_a_header_of_noise_is_corrupt(model: Path, place: int) -> None:
    data = bytearray(model.read_bytes())
    data[place : place + 8] = b"\xff" * 8
    model.write_bytes(data)
    with pytest.raises(ModelCorrupt, match="fetch it again"):
        resolve(str(model))


def _list_of_lists(depth: int) -> bytes:
    """A field whose value is a list of one list, and so on."""
    return struct.pack("<QI", 0, 9) + struct.pack("<IQ", 9, 1) * depth


@pytest.mark.parametrize(
    ("tensors", "fields", "rest"),
    [
        (2**63, 0, b""),
        (0, 2**63, b""),
        (2**24, 2**24, b""),
        (0, 1, struct.pack("<Q", 2**62)),
        (0, 1, struct.pack("<QIIQ", 0, 9, 9, 2**24)),
        (0, 1, struct.pack("<QIIQ", 0, 9, 0, 2**63)),
        (0, 1, _list_of_lists(100_000)),
        (1, 0, struct.pack("<QI", 0, 2**31)),
        (1, 0, struct.pack("<QIIQ", 0, 0, 0, 2**63)),
    ],
)
def test_a_header_that_lies_is_corrupt_at_once(tmp_path: Path, tensors: int, fields: int, rest: bytes) -> None:
    model = tmp_path / "lie.gguf"
    model.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, fields) + rest)
    with pytest.raises(ModelCorrupt, match="fetch it again"):
        resolve(str(model))


def test_a_revision_is_of_the_file_alone(model: Path) -> None:
    first = revision_of(source_of(str(model)), model.parent)
    write_gguf(model.with_name("other.gguf"))
    assert revision_of(source_of(str(model)), model.parent) == first
    check_revision(str(model), model.parent, first)
    data = bytearray(model.read_bytes())
    data[read_gguf(model).offsets[7]] ^= 1
    model.write_bytes(data)
    assert revision_of(source_of(str(model)), model.parent) != first
    with pytest.raises(ModelCorrupt, match="the files changed"):
        check_revision(str(model), model.parent, first)

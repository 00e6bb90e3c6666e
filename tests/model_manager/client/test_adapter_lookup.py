from __future__ import annotations

import hashlib
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.adapter_lookup import Adapters
from millrace.model_manager.store.adapters import digest_of, find_stamped
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.request import Adapter

EMPTY = struct.pack("<Q", 2) + b"{}"  # a safetensors file without tensors


class Finder:
    """find_stamped, and how often it was called, with a clock that stands."""

    def __init__(self) -> None:
        self.calls = 0
        self.now = 0.0

    def __call__(self, name: str) -> tuple[Adapter, object]:
        self.calls += 1
        return find_stamped(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(EMPTY)
    return tmp_path


def test_no_name_is_no_adapter_and_a_model_may_take_none() -> None:
    assert Adapters(0).of("") is None
    with pytest.raises(InvalidRequest, match="adapter='x': needs max_loras of 1 or more"):
        Adapters(0).of("x")


def test_files_are_hashed_once_until_they_change(folder: Path) -> None:
    finder = Finder()
    adapters = Adapters(1, finder)
    first = adapters.of(str(folder))
    assert first == adapters.of(str(folder)) == Adapter(str(folder), str(folder), digest_of(b"{}", EMPTY))
    assert finder.calls == 1
    (folder / "adapter_config.json").write_text('{"r": 8}')
    second = adapters.of(str(folder))
    assert second is not None
    assert second.digest == digest_of(b'{"r": 8}', EMPTY)
    assert finder.calls == 2


def test_a_file_that_changes_while_it_is_hashed_is_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, changed = Adapters(1), '{"r": 8, "lora_alpha": 16}'

    def hash_and_change(file: Any, algorithm: str) -> Any:
        monkeypatch.undo()
        digest = hashlib.file_digest(file, algorithm)
        (folder / "adapter_config.json").write_text(changed)
        return digest

    monkeypatch.setattr("millrace.model_manager.store.adapters.hashlib.file_digest", hash_and_change)
    adapters.of(str(folder))
    found = adapters.of(str(folder))
    assert found is not None
    assert found.digest == digest_of(changed.encode(), EMPTY)


def test_who_names_a_known_adapter_does_not_wait_for_another_that_is_fetched(folder: Path) -> None:
    is_fetching, may_go_on = threading.Event(), threading.Event()

    def find(name: str) -> tuple[Adapter, object]:
        if name == "org/slow":
            is_fetching.set()
            assert may_go_on.wait(60)
        return find_stamped(str(folder))

    adapters = Adapters(2, find)
    known = adapters.of(str(folder))
    with ThreadPoolExecutor(1) as beside:
        slow = beside.submit(adapters.of, "org/slow")
        assert is_fetching.wait(60)
        assert adapters.of(str(folder)) == known
        assert not slow.done()
        may_go_on.set()
        assert slow.result() is not None


def test_what_is_not_there_is_not_looked_for_again_at_once(folder: Path) -> None:
    finder = Finder()
    adapters = Adapters(1, finder, clock=lambda: finder.now)
    name = str(folder / "none")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"adapter {name}: no such folder"):
            adapters.of(name)
    assert finder.calls == 1
    finder.now = 31.0
    with pytest.raises(InvalidRequest):
        adapters.of(name)
    assert finder.calls == 2


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_that_lacks_a_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(InvalidRequest, match=f"adapter {folder}: .* has no {file}"):
        Adapters(1).of(str(folder))


def test_weights_that_are_cut_short(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(EMPTY[:-1])
    with pytest.raises(InvalidRequest, match="not a whole safetensors file"):
        Adapters(1).of(str(folder))

"""What a load found of a model is kept for the same contents and settings, and nothing else is taken for it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from millrace.model_manager.manager.known_models import KnownModels
from millrace.model_manager.wire.config import ModelConfig
from tests.model_manager.model_infos import model_info

CONFIG = ModelConfig(model="org/a", revision="folder-0123456789abcdef")
INFO = model_info(max_model_len=64, num_blocks=5, block_size=16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_later_manager_finds_what_was_kept() -> None:
    KnownModels().keep(CONFIG, "/a", INFO)
    assert KnownModels().find(CONFIG, "/a") == INFO


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        (CONFIG, "/b"),
        (msgspec.structs.replace(CONFIG, revision="folder-0000000000000000"), "/a"),
        (msgspec.structs.replace(CONFIG, max_num_seqs=8), "/a"),
        (msgspec.structs.replace(CONFIG, backend="ctranslate2", backend_options={"inter_threads": 1}), "/a"),
    ],
    ids=["other folder", "other contents", "other setting", "other option"],
)
def test_it_is_of_no_other_contents_or_settings(config: ModelConfig, folder: str) -> None:
    KnownModels().keep(CONFIG, "/a", INFO)
    assert KnownModels().find(config, folder) is None


def test_what_more_memory_would_change_is_not_kept() -> None:
    KnownModels().keep(CONFIG, "/a", msgspec.structs.replace(INFO, is_cut=True))
    assert KnownModels().find(CONFIG, "/a") is None


def test_a_later_load_replaces_what_was_kept() -> None:
    KnownModels().keep(CONFIG, "/a", INFO)
    later = msgspec.structs.replace(INFO, vocab_size=7)
    KnownModels().keep(CONFIG, "/a", later)
    assert KnownModels().find(CONFIG, "/a") == later


def test_contents_without_a_revision_are_not_kept() -> None:
    config = msgspec.structs.replace(CONFIG, revision=None)
    KnownModels().keep(config, "/a", INFO)
    assert KnownModels().find(config, "/a") is None


@pytest.mark.parametrize("flipped", range(0, 400, 7))
def test_a_damaged_file_is_as_none(cache: Path, flipped: int) -> None:
    KnownModels().keep(CONFIG, "/a", INFO)
    (file,) = cache.rglob("*.json")
    content = bytearray(file.read_bytes())
    content[flipped % len(content)] ^= 1
    file.write_bytes(content)
    assert KnownModels().find(CONFIG, "/a") is None


def test_a_folder_that_takes_no_files_costs_a_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "file"))
    known = KnownModels()
    with caplog.at_level(logging.WARNING):
        known.keep(CONFIG, "/a", INFO)
        known.keep(CONFIG, "/a", INFO)
    assert caplog.text.count("has to be loaded to be opened") == 1
    assert known.find(CONFIG, "/a") is None

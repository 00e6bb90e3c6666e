"""Which kind of source a model's name means."""

from pathlib import Path

import pytest

from millrace.model_manager.store.sources import (
    Bucket,
    EmbeddedModel,
    HubRepo,
    LocalPath,
    ModelSource,
    may_be_remote,
    source_of,
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "here").mkdir(parents=True)
    (tmp_path / "millrace-tiny").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "folder", "gguf"),
    [
        ("millrace-tiny", EmbeddedModel, "millrace-tiny", ""),
        ("org/name", HubRepo, "org/name", ""),
        ("org/name/x.gguf", HubRepo, "org/name", "x.gguf"),
        ("gs://bucket", Bucket, "gs://bucket", ""),
        ("gs://bucket/folder/", Bucket, "gs://bucket/folder/", ""),
        ("gs://bucket/folder/x.gguf", Bucket, "gs://bucket/folder", "x.gguf"),
        ("org/here", LocalPath, "org/here", ""),
        ("org/here/x.gguf", LocalPath, "org/here", "x.gguf"),
        ("name", LocalPath, "name", ""),
        ("a/b/c", LocalPath, "a/b/c", ""),
        ("name/x.gguf", LocalPath, "name", "x.gguf"),
        ("x.gguf", LocalPath, "", "x.gguf"),
        ("/a/b", LocalPath, "/a/b", ""),
        ("./a", LocalPath, "./a", ""),
        ("~/a", LocalPath, "~/a", ""),
    ],
)
def test_a_name_is_parsed_into_its_source(name: str, kind: type[ModelSource], folder: str, gguf: str) -> None:
    source = source_of(name)
    assert source == kind(name)
    assert (source.folder, source.gguf) == (folder, gguf)
    assert source.is_remote == (kind in (HubRepo, Bucket))
    assert may_be_remote(name) or not source.is_remote


@pytest.mark.parametrize(
    ("name", "parts"), [("gs://b", ("b", "")), ("gs://b/", ("b", "")), ("gs://b/a/c/", ("b", "a/c/"))]
)
def test_a_bucket_has_a_prefix_that_may_be_empty(name: str, parts: tuple[str, str]) -> None:
    assert Bucket(name).bucket_and_prefix == parts

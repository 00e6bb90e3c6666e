"""A pattern is said to match the paths that a look at it does find."""

from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError, StorageError
from millrace.pipelines.places import watched
from millrace.pipelines.places.watched import check_place, fixed_folder, is_watched
from millrace.transforms.addresses import WatchedFiles
from millrace.transforms.files.file_systems import match

PATHS = (
    "a.jsonl",
    "b-1.jsonl",
    ".hidden.jsonl",
    "sub/a.jsonl",
    "sub/deep/c.txt",
    ".secret/a.jsonl",
    "a.tmp/building-1",
)
PATTERNS = (
    "*", "*.jsonl", "**", "**/**", "**/*.jsonl", "**/a*", "*/*", "sub/**", "sub/**/*.txt", "?.jsonl", "[ab]*.jsonl",
    ".*", "a.jsonl", "../{}/*.jsonl", "./*.jsonl", "sub//*.jsonl", "*b*/**", "no/*", "**/deep/**",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_read_as_a_look_reads_it(pattern: str, tmp_path: Path) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    whole = f"{tmp_path}/{pattern.format(tmp_path.name)}"
    found = {Path(str(file.path)).resolve() for file in match(whole)}
    assert {path for path in PATHS if is_watched(f"{tmp_path}/{path}", whole)} == {
        path for path in PATHS if (tmp_path / path).resolve() in found
    }


def test_links_and_the_working_folder_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert is_watched("real/a.jsonl", f"{tmp_path}/link/*.jsonl")
    assert is_watched(f"{tmp_path}/a.jsonl", "*.jsonl")
    assert not is_watched(f"{tmp_path}/a.jsonl", "gs://bucket/*.jsonl")


def test_a_store_that_cannot_be_listed_is_no_place_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bucket(pattern: str) -> None:
        raise StorageError(f"{pattern}: cannot be listed: NotFound")

    monkeypatch.setattr(watched, "match", no_bucket)
    with pytest.raises(ConfigError, match=r"^--input watch:gs://b/\*: .*cannot be listed: NotFound$"):
        check_place(WatchedFiles("gs://b/*"))


def test_an_object_stores_patterns_are_beams() -> None:
    assert is_watched("gs://b/in/x/a.jsonl", "gs://b/in/**.jsonl")
    assert not is_watched("gs://b/in/x/a.jsonl", "gs://b/in/*.jsonl")


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("/tmp/w/*.jsonl", "/tmp/w"), ("*.jsonl", "."), ("/a/*/b/*.txt", "/a"), ("/a/b.jsonl", "/a"), ("/*", "/")],
)
def test_all_that_matches_is_below_one_folder(pattern: str, folder: str) -> None:
    assert fixed_folder(pattern) == Path(folder)

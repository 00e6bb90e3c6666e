from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.reading.file_ranges import match_files, match_files_and_warn


def test_a_folder_that_gives_no_file_is_told_apart_from_no_folder(tmp_path: Path) -> None:
    (tmp_path / "outer/empty").mkdir(parents=True)
    for name, told in (("outer/empty", "is an empty folder"), ("outer", "is a folder without files")):
        with pytest.raises(ConfigError, match=f"^--input {tmp_path / name}: {told}"):
            match_files([str(tmp_path / name)])
    with pytest.raises(ConfigError, match=r"none: no such file; takes files or globs$"):
        match_files([str(tmp_path / "none")])


def test_a_file_with_many_names_is_read_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        Path(name).touch()
    Path("link.jsonl").symlink_to("a.jsonl")
    names = ["a.jsonl", "./a.jsonl", "[a].jsonl", "link.jsonl", f"{tmp_path}/a.jsonl", "b.jsonl", "b.jsonl"]
    assert [file.path for file in match_files_and_warn(names)] == ["a.jsonl", "b.jsonl"]
    (told,) = caplog.messages
    assert told == "--input names one file as a.jsonl and ./a.jsonl, and so 1 other file: each file is read once"
    assert [file.path for file in match_files(names)] == ["a.jsonl", "b.jsonl"]
    assert len(caplog.messages) == 1

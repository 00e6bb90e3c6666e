from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.reading.file_ranges import match_files


def test_a_folder_that_gives_no_file_is_told_apart_from_no_folder(tmp_path: Path) -> None:
    (tmp_path / "outer/empty").mkdir(parents=True)
    for name, told in (("outer/empty", "is an empty folder"), ("outer", "is a folder without files")):
        with pytest.raises(ConfigError, match=f"^--input {tmp_path / name}: {told}"):
            match_files([str(tmp_path / name)])
    with pytest.raises(ConfigError, match=r"none: no such file; takes files or globs$"):
        match_files([str(tmp_path / "none")])

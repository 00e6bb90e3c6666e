"""A folder's SHA256SUMS, made by sha256sum itself."""

import subprocess
from pathlib import Path

import pytest

from millrace.model_manager.store.checksums import SUMS, check_sums
from millrace.model_manager.wire.errors import ModelCorrupt
from tests.model_manager.store.checkpoints import write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_checkpoint(tmp_path / "small", shards=2)
    for _ in range(2):  # the second time, the file lists itself
        subprocess.run(f"sha256sum * > {SUMS}", shell=True, check=True, cwd=made)
    assert SUMS in (made / SUMS).read_text()
    check_sums(made)
    return made


def test_one_changed_bit_is_told_with_its_file(folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[1]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ModelCorrupt, match=f"^{file}: is damaged"):
        check_sums(folder)
    (folder / SUMS).unlink()
    check_sums(folder)


def test_a_missing_file_and_a_line_that_is_none_are_told(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelCorrupt, match=r"config.json: is in SHA256SUMS, and cannot be read: No such file"):
        check_sums(folder)
    (folder / SUMS).write_text("d41d8cd98f00b204e9800998ecf8427e  config.json\n")
    with pytest.raises(ModelCorrupt, match=r"SHA256SUMS: line 1 is none of sha256sum's"):
        check_sums(folder)

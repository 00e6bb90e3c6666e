"""Two jobs on one output: the second is refused, however it is named, and the first's end frees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.places.claims import claimed_files
from millrace.transforms.addresses import Files
from tests.job_commands import started
from tests.pipelines.refusals import Refused

HOLDER = """
from millrace.pipelines.places.claims import claimed_files
from millrace.transforms.addresses import Files
with claimed_files("--output", Files("out/x")):
    print("claimed", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('"one"\n')
    return tmp_path


def claim(output: str) -> None:
    with claimed_files("--output", Files(output)):
        pass


@pytest.mark.parametrize("flags", [[], ["--resume"], ["--overwrite"]])
def test_a_job_on_an_output_that_is_written_is_refused(folder: Path, flags: list[str], refused: Refused) -> None:
    with claimed_files("--output", Files("out/x")):
        before = sorted(folder.rglob("*"))
        told = refused.run("--input", "a.jsonl", "--output", "out/x", *flags)
        assert sorted(folder.rglob("*")) == before
    assert told.startswith(f"millrace: another job writes out/x (pid {os.getpid()} on host ")


@pytest.mark.parametrize("name", ["out/x", "./out/x.jsonl", "out/../out/x.parquet", "link/x"])
def test_an_output_has_one_claim_by_all_its_names(folder: Path, name: str) -> None:
    (folder / "out").mkdir()
    (folder / "link").symlink_to("out")
    with claimed_files("--output", Files("out/x")), pytest.raises(ConfigError, match="another job writes"):
        claim(name)


def test_dead_letters_are_claimed_too(refused: Refused) -> None:
    with claimed_files("--dead_letters", Files("letters/d")):
        told = refused.run("--input", "a.jsonl", "--output", "out/x", "--dead_letters", "letters/d")
    assert "another job writes letters/d" in told


def test_outputs_beside_each_other_are_apart() -> None:
    with claimed_files("--output", Files("out/x")):
        claim("out/y")


def test_a_claim_leaves_nothing(folder: Path) -> None:
    claim("new/folder/x")
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]


def test_a_killed_jobs_claim_is_free_and_goes_with_the_next(folder: Path) -> None:
    with started([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigError, match=f"pid {holder.pid} on host"):
            claim("out/x")
        holder.kill()
        holder.wait()
    assert (folder / "out/.millrace/x.claim").exists()
    claim("out/x")
    assert not (folder / "out/.millrace/x.claim").exists()

"""What docs/tutorials/dataflow.md prints beneath its commands is what they print."""

import re
import shlex
from pathlib import Path

import pytest

from millrace.pipelines.cli import dispatch
from millrace.pipelines.flags.machines import GPUS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorials/dataflow.md").read_text(encoding="utf-8")


def printed_after(words: str) -> tuple[list[str], str]:
    """The first command that has these words, and the text block that follows it."""
    found = re.search(rf"^\.venv/bin/millrace ({words}.*?)```.*?```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " ")), found[2]


def test_the_dry_run_shows_the_table_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = printed_after("run --runner")
    assert dispatch(command) == 0
    assert capsys.readouterr().err.replace(str(ROOT), "…") == shown


def test_the_plan_is_that_of_the_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command, shown = printed_after("plan")
    monkeypatch.chdir(ROOT)
    assert dispatch(command) == 0
    assert capsys.readouterr().out == shown


def test_the_page_names_every_gpu() -> None:
    assert ", ".join(f"`{name}`" for name in GPUS) in PAGE

"""The reference pages have every name, and a meaning beside each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.model_manager.wire.backends import BACKENDS
from millrace.pipelines.cli import COMMANDS
from millrace.pipelines.flags.job_flags import make_parser
from millrace.pipelines.flags.task_commands import TASKS
from tests.docs.reference_pages import _PART, PAGES, PARTS, flags, made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_as_the_code_has_them(page: Path) -> None:
    stored = page.read_text(encoding="utf-8")
    assert stored == made(stored), "stale: run `make reference`, and read what changed"


def test_each_table_stands_on_a_page() -> None:
    stored = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(found[1] for found in _PART.finditer(stored)) == sorted(PARTS), "a mark, or its end, is missing"


@pytest.mark.parametrize("part", sorted(set(PARTS) - {"engines"}))
def test_each_name_of_a_table_has_a_meaning(part: str) -> None:
    meaning = 2  # flags have the commands behind it
    rows = [line[2:-2].split(" | ") for line in "\n".join(PARTS[part]()).splitlines() if line.startswith("| `")]
    assert rows
    assert [row[0] for row in rows if not row[meaning if part == "flags" else -1].strip()] == []


def test_the_page_of_engines_has_every_engine_and_what_it_cannot_do() -> None:
    page = "\n".join(PARTS["engines"]())
    assert [name for name in BACKENDS if f"### {name}" not in page] == []
    assert "| sampling parameters that it lacks | `typical_p` |" in page.partition("### vllm\n")[2].partition("### ")[0]


def test_the_page_of_flags_has_every_command_and_flag() -> None:
    page = "\n".join(flags())
    known = {flag for task in TASKS.values() for flag in make_parser(task)._option_string_actions} - {"-h", "--help"}
    assert [flag for flag in known if f"`{flag}`" not in page] == []
    assert [command for command in COMMANDS if command not in page] == []


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=PAGES[0].parents[2], env=env, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    assert "millrace.Generate" in (tmp_path / "reference/classes/index.html").read_text(encoding="utf-8")

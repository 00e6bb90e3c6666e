"""The commands and snippets of pages run, in the order of the page, and print what stands below them.

A block under `<!-- not run: … -->` is left out; the comment says why. README's commands are left out too: they install.
tests/check and `.ci/run` do what they do. The pages share a folder of processes, so the model is loaded once, and what
their snippets in Python import is imported once.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.warm_python import WarmPython, warm_python
from tests.runtime_folders import model_loaded

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+-->\n)?```(?P<language>sh|python|yaml|java)\n(?P<code>.*?)```"
    r"(?:\n\n```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


class Block(NamedTuple):
    """A command or snippet, and what it prints; None where the page does not say."""

    language: str
    code: str
    printed: str | None


def blocks(page: str) -> list[Block]:
    """The blocks of a page that run."""
    found = _BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    all_blocks = [Block(each["language"], each["code"], each["printed"]) for each in found if not each["skip"]]
    return [block for block in all_blocks if page != "README.md" or block.language == "python"]


PAGES = [
    page
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if blocks(page := str(path.relative_to(ROOT)))
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    with model_loaded(tmp_path_factory.mktemp("rt") / "rt"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with warm_python() as running:
            yield running


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, python: WarmPython) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "deploy/dataflow", tmp_path / "deploy/dataflow")
    shutil.copytree(ROOT / "examples/prompts", tmp_path / "prompts")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for block in blocks(page):
        ended = python.run(block.code, tmp_path) if block.language == "python" else _run(block, tmp_path, env)
        assert ended.returncode == 0, f"{block.code}\n{ended.stderr}"
        assert block.printed in (None, ended.stdout), f"{block.code}\n{ended.stdout}\n{ended.stderr}"


def _run(block: Block, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    assert block.language == "sh", f"nothing here runs {block.language}: {block.code}"
    command = ["bash", "-e", "-c", block.code]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)

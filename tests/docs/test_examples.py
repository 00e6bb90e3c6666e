"""What docs print beneath their examples is what the examples print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = "".join(
    (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8") for name in ("score-and-embed", "failures")
)
EXAMPLES = re.findall(r"```(sh|python)\n(.*?)```\n\n```text\n(.*?)```", PAGES, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("language", "code", "printed"), EXAMPLES)
def test_an_example_prints_what_stands_below_it(language: str, code: str, printed: str, tmp_path: Path) -> None:
    python = ["bash", "-e", "-c"] if language == "sh" else [sys.executable, "-c"]
    commands = {
        "millrace": f"{sys.executable} -c 'from millrace.pipelines.cli import main; main()'",
        "python": sys.executable,
    }
    code = re.sub(r"\.venv/bin/(\w+)", lambda found: commands[found[1]], code)
    paths = {"MILLRACE_RUNTIME_DIR": f"{tmp_path}/rt", "PYTHONPATH": str(ROOT)}
    command = [*python, code]
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, timeout=800, check=False
    )
    assert (ended.stdout, ended.returncode) == (printed, 0), ended.stderr


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 6

"""The functions that docs/explanation/architecture.md names run for one prompt, in all three processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
HOPS = re.findall(r"^(\w+/[\w/]+\.py) +([\w.]+)$", PAGE, re.MULTILINE)
COUNTS = [int(count) for count in re.findall(r"^\*\*[\w ,]+\*\* \((\d+)", PAGE, re.MULTILINE)]
PROFILED = """
import os, sys, threading
if "PROFILE_TO" in os.environ:
    seen, file = set(), open(os.environ["PROFILE_TO"] + f"/{os.getpid()}", "w", buffering=1)
    def called(frame, event, argument):
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            file.write(f"{code.co_filename} {code.co_qualname}\\n")
    threading.setprofile(called)
    sys.setprofile(called)
"""
JOB = """
import apache_beam as beam
from millrace import Generate, SamplingParams
with beam.Pipeline(runner="FnApiRunner") as pipeline:
    answers = pipeline | beam.Create(["What is the capital of Mexico?"]) | Generate("millrace-tiny", SamplingParams())
"""


def test_each_listed_function_runs_for_one_prompt(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PROFILED)
    calls = tmp_path / "calls"
    calls.mkdir()
    env = {"MILLRACE_RUNTIME_DIR": f"{tmp_path}/rt", "PROFILE_TO": str(calls), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    subprocess.run([sys.executable, "-c", JOB], env=os.environ | env, check=True, timeout=300)
    seen = {line for file in calls.iterdir() for line in file.read_text().splitlines()}
    ran = {(path, name) for path, name in HOPS for line in seen if line.endswith(f"/{path} {name}")}
    assert [hop for hop in HOPS if hop not in ran] == []


def test_the_page_counts_them() -> None:
    assert len(HOPS) == sum(COUNTS)
    assert f"are listed: {len(HOPS)}." in PAGE


def test_where_to_look_names_functions_that_there_are() -> None:
    named = re.findall(r"^- `([\w/]+\.py)`: `(?:\w+\.)?(\w+)`", PAGE, re.MULTILINE)
    assert len(named) >= 6
    assert [each for each in named if f" {each[1]}(" not in (ROOT / each[0]).read_text(encoding="utf-8")] == []

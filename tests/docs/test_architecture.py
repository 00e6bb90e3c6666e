"""The functions that docs/explanation/architecture.md names run for one prompt, in all three processes."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
(TREE,) = re.findall(r"```\n(millrace/  .*?)```", PAGE, re.DOTALL)
HOPS = re.findall(r"^(\w+/[\w/]+\.py) +([\w.]+)$", PAGE, re.MULTILINE)
WHERE = {
    task: [
        (path, re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)`", text))
        for path, text in re.findall(r"^- `([\w/]+\.py)`: (.*(?:\n  .+)*)", bullets, re.MULTILINE)
    ]
    for task, bullets in re.findall(r"^\*\*([\w' ,]+)\*\*\n\n((?:[- ] .*\n)+)", PAGE, re.MULTILINE)
}
"""Under "Where to look": a task's files, each with the names in it."""
COUNTS = [int(count) for count in re.findall(r"^\*\*[\w ,]+\*\* \((\d+)", PAGE, re.MULTILINE)]
PROFILED = """
import functools, os, sys, threading
from importlib.machinery import SourceFileLoader
if "PROFILE_TO" in os.environ:
    seen, file = {}, open(os.environ["PROFILE_TO"] + f"/{os.getpid()}", "w", buffering=1)
    def called(frame, event, argument):  # of calls alone: no lines, for it returns no function that is told of them
        code = frame.f_code
        if id(code) not in seen:  # the hash of a code object covers all its constants: it takes long
            seen[id(code)] = code
            file.write(f"{code.co_filename} {code.co_qualname}\\n")
    load = SourceFileLoader.exec_module
    def traced(trace, function, *given):
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return function(*given)
        finally:
            sys.settrace(before)
    def loaded(loader, module):
        # What packages call while they are imported, or compile, is most of all calls, and asked by nobody.
        traced(None if "site-packages" in loader.path else called, load, loader, module)
        if loader.path.endswith("/cpu/kernel_cache.py"):
            module.compiled = functools.partial(traced, None, module.compiled)
    SourceFileLoader.exec_module = loaded
    threading.settrace(called)
    sys.settrace(called)
"""
JOB = """
import apache_beam as beam
from millrace import Generate, SamplingParams
with beam.Pipeline(runner="FnApiRunner") as pipeline:
    answers = pipeline | beam.Create(["What is the capital of Mexico?"]) | Generate("millrace-tiny", SamplingParams())
"""

DEATH = """
import contextlib, os, signal
from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ManagerUnavailable
from millrace.model_manager.wire.sampling import SamplingParams
with EngineClient.open(ModelConfig(model="millrace-tiny", backend="fake")) as client:
    status = None
    while status is None:
        with contextlib.suppress(ManagerUnavailable):
            status = read_status()
    os.kill(status.models[0].pids[0], signal.SIGKILL)
    client.submit([1, 100], SamplingParams(), request_id="a").result(120)
"""


def test_each_listed_function_runs_for_one_prompt(tmp_path: Path) -> None:
    ran = profiled(tmp_path, JOB)
    assert [hop for hop in HOPS if hop not in ran] == []


def profiled(folder: Path, program: str) -> set[tuple[str, str]]:
    """The functions that a program called in all its processes: file from the top of the checkout, qualified name."""
    (folder / "sitecustomize.py").write_text(PROFILED)
    calls = folder / "calls"
    calls.mkdir()
    env = {"MILLRACE_RUNTIME_DIR": f"{folder}/rt", "PROFILE_TO": str(calls), "PYTHONPATH": f"{folder}:{ROOT}"}
    subprocess.run([sys.executable, "-c", program], env=os.environ | env, check=True, timeout=300)
    lines = (line.rpartition(" ") for file in calls.iterdir() for line in file.read_text().splitlines())
    return {(from_top(path), name) for path, _, name in lines}


def from_top(path: str) -> str:
    """A module's path from the top of the checkout: links of `millrace/` lead to the layers."""
    file = Path(path).resolve()
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else path


def test_the_page_counts_them() -> None:
    assert len(HOPS) == sum(COUNTS)
    assert f"its result on: {len(HOPS)}." in PAGE.replace("\n", " ")


def test_the_tree_has_each_room_that_is_there_and_no_other() -> None:
    layers = ("transforms", "serving", "pipelines", "model_manager")
    rooms = {file.parent for layer in layers for file in (ROOT / layer).rglob("__init__.py")}
    rooms = {room.relative_to(ROOT) for room in rooms if "embedded" not in room.parts}
    assert {str(room) for room in rooms} | {"millrace"} == {*drawn_rooms()} - {"model_manager/store/embedded"}


def drawn_rooms() -> Iterator[str]:
    """The folders of the tree, by their paths."""
    path: list[str] = []
    for indent, name in re.findall(r"^((?:  )*)(\w+)/(?:  .*)?$", TREE, re.MULTILINE):
        path[len(indent) // 2 :] = [name]
        yield "/".join(path)


def test_where_to_look_names_what_its_files_define() -> None:
    named = [(path, name) for bullets in WHERE.values() for path, names in bullets for name in names]
    assert len(named) >= 20
    assert [(path, name) for path, name in named if name not in defined(ROOT / path)] == []


def test_where_to_look_names_three_files_at_most() -> None:
    assert len(WHERE) >= 7
    assert [task for task, bullets in WHERE.items() if not 2 <= len(bullets) <= 3] == []


def test_the_sampler_has_no_other_file_that_knows_a_parameter() -> None:
    folder = "model_manager/engine/sampling"
    tasks = ("A new sampling parameter", "A sampling parameter in the CPU's kernel")
    named = {path for task in tasks for path, _ in WHERE[task] if path.startswith(folder)}
    texts = {f"{folder}/{file.name}": file.read_text(encoding="utf-8").lower() for file in (ROOT / folder).glob("*.py")}
    assert {path for path, text in texts.items() if re.search("typical_p|frequency_penalty", text)} == named


def test_an_engines_death_passes_the_functions_that_are_named(tmp_path: Path) -> None:
    ran = profiled(tmp_path, DEATH)
    tasks = ("An engine's death is noticed", "What follows an engine's death")
    named = [(path, name) for task in tasks for path, names in WHERE[task] for name in names]
    assert len(named) == 7
    assert [hop for hop in named if hop not in ran] == []


def defined(file: Path) -> set[str]:
    """The names that a file defines or imports, those within classes behind the class's name."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names = names_of(node)
        found |= names
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            found |= {f"{outer}.{name}" for outer in names for name in names_of(inner)}
    return found


def names_of(node: ast.stmt) -> set[str]:
    """The names that one statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()

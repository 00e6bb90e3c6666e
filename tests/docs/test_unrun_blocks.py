"""Blocks under `<!-- not run: … -->`, README's commands, and commands in sentences, as far as they can be tried.

Flags and their values are parsed, a dry run stands in for a submission, pipelines are built and not run, and files,
extras, build arguments and parameters of templates are there. Each such comment names a test: this one, if no other.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import metadata
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.store import resolve
from millrace.model_manager.store.checksums import check_sums
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import ModelCorrupt
from millrace.pipelines.cli import COMMANDS, dispatch
from millrace.pipelines.dataflow.flex_template import flags_of
from millrace.pipelines.flags.beam import beam_options
from millrace.pipelines.flags.job_flags import make_parser
from millrace.pipelines.flags.task_commands import TASKS
from tests.json_lines import rows_of, write_rows
from tests.model_manager.store.model_hub import serve

ROOT = Path(__file__).parents[2]
JOBS = {task.command: task for task in TASKS.values()}
_BLOCK = re.compile(r"<!-- not run: ([^>]+)-->\n```(\w+)\n(.*?)```", re.DOTALL)
_README_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`((?:\.venv/bin/)?python\s+-m\s[^`]+)`")
"""A command in a sentence."""
_DATAFLOW = "--project p --region us-central1 --temp_location gs://b/tmp --input gs://b/in --output gs://b/out"


class Block(NamedTuple):
    page: str
    why: str
    language: str
    code: str


README = ROOT / "README.md"
PAGES = {page: page.read_text(encoding="utf-8") for page in (README, *sorted((ROOT / "docs").rglob("*.md")))}
BLOCKS = [Block(str(page.relative_to(ROOT)), *found) for page, text in PAGES.items() for found in _BLOCK.findall(text)]
INLINE = [" ".join(code.split()) for text in PAGES.values() for code in _INLINE.findall(text)]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def lines() -> Iterator[list[str]]:
    """The words of each command, without comments, prompts of variables and what is set before it."""
    blocks = [block.code for block in of("sh")] + _README_BLOCK.findall(PAGES[README])
    for code in (*blocks, *INLINE):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                del words[0]
            if words:
                yield words


def commands(name: str) -> list[list[str]]:
    """What follows a program's name, wherever it stands in a command: `docker run … millrace run` has one."""
    found = [(words, [Path(word).name for word in words]) for words in lines()]
    return [words[names.index(name) + 1 :] for words, names in found if name in names]


def millrace(command: str) -> list[list[str]]:
    return [words[1:] for words in commands("millrace") if words[:1] == [command]]


def test_each_block_that_is_not_run_names_a_test() -> None:
    assert len(BLOCKS) > 40
    assert [(block.page, block.why) for block in BLOCKS if "tests/" not in block.why] == []


@pytest.mark.parametrize("command", JOBS)
def test_flags_of_a_job_and_their_values_are_taken(command: str) -> None:
    parser = make_parser(JOBS[command])
    for words in millrace(command):
        _, others = parser.parse_known_args([word for word in words if word != "…"])
        beam_options(others, {})


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*JOBS}))
def test_flags_of_other_commands_are_in_their_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {word.partition("=")[0] for words in millrace(command) for word in words if word.startswith("--")}
    if given:
        with pytest.raises(SystemExit):
            dispatch([command, "--help"])
    assert given - set(re.findall(r"--\w+", capsys.readouterr().out)) == set()


def test_all_commands_are_known() -> None:
    named = {words[0] for words in commands("millrace") if words}
    assert {"run", "engines", "serve"} <= named
    assert named - {*COMMANDS} - {"."} == set()


def test_commands_of_dataflow_pass_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    given = [words for words in millrace("run") if "DataflowRunner" in words and "…" in words]
    assert len(given) >= 3
    for words in given:
        known = ["host/p/image:1" if word == "$IMAGE" else word for word in words if word != "…"]
        assert dispatch(["run", *known, *_DATAFLOW.split(), "--dry_run"]) == 0, words
    assert capsys.readouterr().err.count("not submitted: this is a dry run") == len(given)


def test_parameters_of_the_template_are_in_its_description() -> None:
    (given,) = (words for words in commands("gcloud") if words[:3] == ["dataflow", "flex-template", "run"])
    pairs = [pair.partition("=") for pair in given[given.index("--parameters") + 1].removeprefix("^~^").split("~")]
    described = json.loads((ROOT / "deploy/dataflow/metadata.json").read_text(encoding="utf-8"))["parameters"]
    taken = {each["name"]: each.get("regexes", [".*"]) for each in described}
    for name, _, value in pairs:
        text = value.replace("$IMAGE", "host/p/image:1")
        assert all(re.fullmatch(regex, text) for regex in taken[name]), name
    command, flags = flags_of([f"--{name}={value}" for name, _, value in pairs])
    make_parser(JOBS[command]).parse_known_args(flags)


def test_images_are_built_from_arguments_that_their_files_take() -> None:
    built = [words for words in commands("docker") if words[0] == "build"]
    assert len(built) >= 3
    for words in built:
        file = (ROOT / words[words.index("-f") + 1]).read_text(encoding="utf-8")
        given = [word.partition("=")[0] for before, word in pairwise(words) if before == "--build-arg"]
        assert [name for name in given if not re.search(rf"^ARG {name}\b", file, re.MULTILINE)] == []


def test_targets_of_make_are_in_the_makefile() -> None:
    targets = {word for words in commands("make") for word in words}
    assert {"demo", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []


def test_installed_extras_are_the_distributions() -> None:
    named = [extra for words in commands("pip") for each in re.findall(r"millrace\[([\w,]+)\]", " ".join(words))
             for extra in each.split(",")]  # fmt: skip
    assert {"engine", "serve", "traces"} <= set(named)
    assert set(named) <= set(metadata("beam-millrace").get_all("Provides-Extra", []))


def test_named_files_and_programs_are_here() -> None:
    words = [word for line in lines() for word in line]
    files = [word for word in words if word.startswith(("deploy/", "examples/"))]
    modules = [
        module for word, module in pairwise(words) if word == "-m" and (ROOT / module.partition(".")[0]).is_dir()
    ]
    assert len(files) > 5
    assert len(modules) > 5
    assert [file for file in files if not any(ROOT.glob(file))] == []
    assert [name for name in modules if not (ROOT / (name.replace(".", "/") + ".py")).exists()] == []


BENCHMARKS = [
    words[words.index("-m") + 1 :]
    for words in lines()
    if any(each.startswith("benchmarks.") for each in words)
    or (any(each.startswith("tests.") for each in words) and any(each.startswith("--") for each in words))
]


@pytest.mark.parametrize("command", BENCHMARKS, ids=" ".join)
def test_flags_of_benchmarks_are_in_their_help(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [command[0], "--help"])
    with pytest.raises(SystemExit):
        import_module(command[0]).main()
    given = {word.partition("=")[0] for word in command if word.startswith("--")}
    assert given - set(re.findall(r"--\w+", capsys.readouterr().out)) == set()


@pytest.mark.parametrize(
    "block", [each for each in of("python") if "Generate(" in each.code], ids=lambda each: each.page
)
def test_pipelines_are_built(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of another engine is not looked for: any will do."""
    monkeypatch.setattr("millrace.model_manager.store.environments.environment_python", lambda _: Path(sys.executable))
    pipeline = beam.Pipeline()
    exec(block.code, {"pipeline": pipeline, "prompts": pipeline | beam.Create(["a"])})


def test_what_prometheus_is_to_scrape_is_where_the_server_listens() -> None:
    (block,) = (each for each in of("yaml") if "scrape_configs" in each.code)
    (job,) = yaml.safe_load(block.code)["scrape_configs"]
    assert set(job) == {"job_name", "static_configs", "authorization"}
    assert set(job["authorization"]) == {"credentials_file"}
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]


def own_model(containing: str, folder: Path, more: str = "", **environment: str) -> None:
    """Run the block of the page of one's own model that has those words, in a folder."""
    (code,) = (each.code for each in of("sh") if each.page.endswith("own-model.md") and containing in each.code)
    command = ["bash", "-e", "-c", code.strip() + more]
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, timeout=300)


def test_a_model_of_a_hub_answers(tmp_path: Path) -> None:
    """The hub is the tests' own, and the engine computes nothing."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts/a.jsonl", [{"id": "a", "prompt": "What is the capital of Mexico?"}])
    runtime = {"MILLRACE_RUNTIME_DIR": f"{tmp_path}/rt", "PYTHONPATH": str(ROOT)}
    with serve(tmp_path / "hub") as hub:
        hub.models["org/name"] = resolve(EMBEDDED_MODEL)
        own_model("--model org/name", tmp_path, " --backend fake --linger 0", **hub.environment, **runtime)
        assert "config.json" in hub.downloads
    (row,) = rows_of(tmp_path, "out/completions-0*.jsonl")
    assert (row["id"], row["model"]) == ("a", "org/name")


def test_checksums_of_a_folder_are_compared(tmp_path: Path) -> None:
    shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / "my-model")
    own_model("sha256sum", tmp_path)
    check_sums(tmp_path / "my-model")
    (tmp_path / "my-model/config.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match=r"config\.json: is damaged"):
        check_sums(tmp_path / "my-model")

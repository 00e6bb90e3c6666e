"""Pipelines in Beam's YAML, with real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.cli import dispatch
from millrace.pipelines.commands.yaml_job import PROVIDERS
from tests.json_lines import rows_of
from tests.pipelines.refusals import Refused
from tests.servers.job_service import job_service

ENGINE = "{backend: fake}"


def spec(folder: Path, engine: str = ENGINE, providers: str = "", more: str = "") -> Path:
    """Questions of a CSV file, answered, to files; what fails to others."""
    (folder / "questions.csv").write_text("number,question\n1,What is the capital of Mexico?\n2,What is 2 + 3?\n3,\n")
    file = folder / "pipeline.yaml"
    file.write_text(f"""\
pipeline:
  transforms:
    - type: ReadFromCsv
      name: Read
      config:
        path: {folder}/questions.csv
        keep_default_na: false
    - type: Generate
      input: Read
      config:
        prompt_field: question
        sampling: {{max_tokens: 16}}
        engine: {engine}
        manager: {{linger: 0.5}}
        error_handling: {{output: failures}}
{more}
    - type: MapToFields
      name: Shown
      input: Generate
      config:
        language: python
        fields:
          number: number
          answer: completion.text
    - type: WriteToJson
      name: Answers
      input: Shown
      config:
        path: {folder}/answers.jsonl
    - type: MapToFields
      name: Reasons
      input: Generate.failures
      config:
        language: python
        fields:
          number: element.number
          reason: msg
    - type: WriteToJson
      name: Failures
      input: Reasons
      config:
        path: {folder}/failures.jsonl
{providers}
""")
    return file


def written(folder: Path, name: str) -> list[dict[str, Any]]:
    return sorted(rows_of(folder, f"{name}.jsonl-*"), key=lambda row: int(row["number"]))


def reasons(folder: Path) -> list[tuple[int, str]]:
    return [(row["number"], row["reason"]) for row in written(folder, "failures")]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_a_pipeline_in_yaml_runs_by_our_command_which_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["yaml", str(spec(tmp_path))]) == 0
    assert [row["number"] for row in written(tmp_path, "answers")] == [1, 2]
    assert all(row["answer"] for row in written(tmp_path, "answers"))
    assert reasons(tmp_path) == [(3, "InvalidRequest: the prompt is empty")]
    shown = capsys.readouterr()
    assert shown.err == f"{tmp_path}/pipeline.yaml: runs on this machine\n"
    lasted, asked, tokens, *places = shown.out.splitlines()
    assert lasted.startswith("done in ")
    assert asked == "2 rows answered, 1 failed"
    assert re.fullmatch(r"[1-9]\d* prompt tokens \(\d+ from the cache\), [1-9]\d* generated", tokens)
    written_to = f"written: {tmp_path}"
    assert places == [f"{written_to}/{name}.jsonl-00000-of-00001" for name in ("answers", "failures")]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_a_pipeline_whose_every_row_failed_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = spec(tmp_path)
    (tmp_path / "questions.csv").write_text("number,question\n3,\n4,\n")
    assert dispatch(["yaml", str(file)]) == 1
    assert "0 rows answered, 2 failed" in capsys.readouterr().out
    assert reasons(tmp_path) == [(number, "InvalidRequest: the prompt is empty") for number in (3, 4)]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_a_pipeline_in_yaml_runs_by_beams_own_command(tmp_path: Path) -> None:
    file = spec(tmp_path, providers=f"providers:\n  - include: {PROVIDERS}")
    command = [sys.executable, "-m", "apache_beam.yaml.main", "--yaml_pipeline_file", str(file)]
    command += ["--runner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert [row["number"] for row in written(tmp_path, "answers")] == [1, 2]
    assert all(row["answer"] for row in written(tmp_path, "answers"))
    assert reasons(tmp_path) == [(3, "InvalidRequest: the prompt is empty")]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_the_documents_example_does_what_it_says(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs/how-to/yaml-and-java.md").read_text()
    example, *_ = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    promised, *_ = re.findall(r"```json\n(.*?)```", document, re.DOTALL)
    file = tmp_path / "capitals.yaml"
    file.write_text(example.replace("out/", f"{tmp_path}/out/"))
    assert dispatch(["yaml", str(file)]) == 0
    written = [path.read_text() for path in sorted((tmp_path / "out").glob("*.jsonl-*"))]
    assert "".join(written) == promised


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pipeline: [", "while parsing"),
        ("a: 1", "takes a mapping with `pipeline`"),
        ("pipeline: {transforms: [{type: Genrate}]}", "Genrate"),
    ],
)
def test_what_is_no_pipeline_is_told_in_one_sentence(tmp_path: Path, text: str, said: str, refused: Refused) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    shown = refused("yaml", str(file))
    assert shown.startswith(f"millrace: {file}: ")
    assert said in shown


def test_a_pipeline_without_a_model_says_when_it_is_done_and_what_it_wrote_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    (tmp_path / "a.txt-00000-of-00007").touch()
    os.utime(tmp_path / "a.txt-00000-of-00007", (1, 1))
    file.write_text(f"""\
pipeline:
  type: chain
  transforms:
    - {{type: Create, config: {{elements: [{{text: x}}]}}}}
    - {{type: WriteToText, config: {{path: {tmp_path}/a.txt}}}}
""")
    assert dispatch(["yaml", str(file)]) == 0
    lasted, *rest = capsys.readouterr().out.splitlines()
    assert lasted.startswith("done in ")
    assert rest == [f"written: {tmp_path}/a.txt-00000-of-00001"]


def test_a_pipeline_that_is_not_there_is_told(tmp_path: Path, refused: Refused) -> None:
    told = f"millrace: {tmp_path}/nothere.yaml: there is no such file; takes a file of Beam's YAML\n"
    assert refused("yaml", f"{tmp_path}/nothere.yaml") == told


@pytest.mark.parametrize(
    ("parts", "flags", "said"),
    [
        ({"providers": "options: {runner: FooRunner}"}, [], "--runner FooRunner: there is no such runner"),
        ({"engine": "{quantization: int9}"}, [], "quantization='int9': takes"),
        ({}, ["--runer", "x"], "did you mean --runner"),
    ],
)
def test_what_is_wrong_in_a_pipeline_or_its_flags_is_told(
    tmp_path: Path, parts: dict[str, str], flags: list[str], said: str, refused: Refused
) -> None:
    assert said in refused("yaml", str(spec(tmp_path, **parts)), *flags)


def test_what_is_wrong_with_a_job_server_or_its_workers_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("pipeline: {transforms: [{type: Create, config: {elements: [1]}}]}")
    workers = ["--environment_type=EXTERNAL", "--environment_config=w:1"]
    with job_service(refusal="java.net.ConnectException: Connection refused") as endpoint:
        job = ["yaml", str(file), "--runner=PortableRunner", f"--job_endpoint={endpoint}", *workers]
        assert dispatch(job) == 1
        assert "--environment_config w:1 does not name one" in capsys.readouterr().err
    assert dispatch(job) == 2
    assert f"no job server at {endpoint}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("{backend: llama_cp}", "backend='llama_cp': did you mean llama_cpp?"),
        (
            "{backend: ctranslate2, backend_options: {threads: 2}}",
            "unknown option of the back end ctranslate2 'threads'",
        ),
        ("{backend: llama_cpp}", "model='millrace-tiny': the back end llama_cpp takes a GGUF file"),
        ("{backend: endpoint}", "backend_options: urls is missing"),
    ],
)
def test_another_engine_is_checked_before_the_pipeline_runs(
    engine: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["yaml", str(spec(tmp_path, engine))]) == 2
    assert told in capsys.readouterr().err

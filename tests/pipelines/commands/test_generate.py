import json
import tempfile
from pathlib import Path

import pytest

from millrace.model_manager.client.status import read_status
from millrace.pipelines.commands.job_commands import generate as main
from tests.json_lines import rows_of
from tests.runtime_folders import status_of


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    lines = [json.dumps({"prompt": f"question {number}", "number": number}) for number in range(30)]
    lines[7] = "not json"
    lines[8] = json.dumps({"prompt": "word " * 5000})
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "prompts.jsonl")


def run(prompts: str, folder: Path, *flags: str) -> int:
    output = ["--output", str(folder / "out" / "c")]
    return main(["--input", prompts, *output, "--backend", "fake", "--max_tokens", "4", "--linger", "20", *flags])


def test_the_main_job_completes_prompts_and_says_where_and_how_many(
    runtime: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path, "--linger", "60") == 0
    completed = rows_of(tmp_path, "out/c-*.jsonl")
    assert sorted(row["columns"]["number"] for row in completed) == [n for n in range(30) if n not in (7, 8)]
    assert all(row["usage"]["completion_tokens"] == 4 and row["model"] == "millrace-tiny" for row in completed)
    dead = {row["error"]: row for row in rows_of(tmp_path, "out/c.dead_letters-*.jsonl")}
    assert set(dead) == {"UnreadableRow", "PromptTooLong"}
    (revision,) = {row["revision"] for row in completed}
    assert revision.startswith("folder-")
    assert (dead["PromptTooLong"]["model"], dead["PromptTooLong"]["revision"]) == ("millrace-tiny", revision)
    assert "model" not in dead["UnreadableRow"]
    shown = capsys.readouterr()
    assert "28 completions in" in shown.out
    assert f"{tmp_path}/out/c-00000-of-00001.jsonl" in shown.out
    assert "dead letters: 2 rows (1 PromptTooLong, 1 UnreadableRow) in" in shown.out
    assert runtime.exists()


@pytest.mark.usefixtures("shared_runtime")
def test_a_run_that_is_refused_leaves_no_temporary_folder(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "c-00000-of-00001.jsonl").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert run(prompts, tmp_path) == 2
    assert not list((tmp_path / "temporary").glob("beam-*"))


@pytest.mark.usefixtures("shared_runtime")
def test_the_stateful_variant_is_refused_where_it_would_give_nothing(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path, "--stateful") == 2
    assert "stateful" in (said := capsys.readouterr().err)
    assert "FnApiRunner" in said


@pytest.mark.usefixtures("shared_runtime")
def test_a_second_run_is_refused_and_a_resumed_one_only_tries_what_failed(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path) == 0
    assert run(prompts, tmp_path) == 2
    assert (
        f"--output {tmp_path}/out/c: {tmp_path}/out/c-00000-of-00001.jsonl is already there" in capsys.readouterr().err
    )
    assert run(prompts, tmp_path, "--resume") == 0  # what was left to do failed again, as it would each time
    assert len(rows_of(tmp_path, "out/c-*.jsonl")) == 28
    assert len(rows_of(tmp_path, "out/c.dead_letters-*.jsonl")) == 2
    assert run(prompts, tmp_path, "--overwrite", "--quiet") == 0
    assert len(rows_of(tmp_path, "out/c-*.jsonl")) == 28


@pytest.mark.usefixtures("shared_runtime")
def test_an_overwriting_run_whose_model_cannot_be_loaded_leaves_everything_as_it_was(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path, "--quiet") == 0
    unfinished = tmp_path / "out/c.tmp/earlier/completions-a.jsonl"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("{}\n")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert run(prompts, tmp_path, "--overwrite", "--backend", "torch", "--max_model_len", "999999") == 2
    assert "--max_model_len 999999" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("shared_runtime")
def test_a_job_that_is_to_fail_fast_ends_with_the_row_and_its_place(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path, "--fail_fast") == 1
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith(f"millrace: the job failed: {prompts}@")
    assert "not JSON" in shown


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--model", "/no/such/folder"], "/no/such/folder"),
        (["--input", "/no/such/file*.jsonl"], "no such file"),
        (["--output", "a*"], "output"),
        (["--max_tokens", "-1"], "max_tokens"),
    ],
)
def test_what_can_be_known_before_the_job_ends_it_with_status_2(
    runtime: Path, prompts: str, tmp_path: Path, flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(prompts, tmp_path, *flags) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("millrace: ") == 1
    assert read_status(runtime) is None


@pytest.mark.slow
def test_three_workers_share_one_manager_and_one_engine(runtime: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"question {number}", "pad": "x" * 1000}) for number in range(600)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    workers = ["--direct_running_mode=multi_processing", "--direct_num_workers=3", "--linger=60", "--quiet"]
    workers += ["--hang_timeout=120"]  # a manager that stands still is the same afterwards
    assert run(f"{tmp_path}/prompts.jsonl", tmp_path, *workers) == 0
    assert len({row["id"] for row in rows_of(tmp_path, "out/c-*.jsonl")}) == 600
    status = status_of(runtime)
    assert status is not None
    assert sorted(process.role for process in status.processes if process.role != "client") == ["engine", "manager"]
    assert [(model.model, model.restarts) for model in status.models] == [("millrace-tiny", 0)]
    assert [job.finished for job in status.jobs] == [600]


@pytest.mark.usefixtures("shared_runtime")
def test_rows_that_share_ids_are_all_answered_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "a.jsonl", tmp_path / "b.csv"
    one.write_text("".join(json.dumps({"id": f"x{number}", "prompt": f"a{number}"}) + "\n" for number in range(5)))
    two.write_text("id,prompt\n" + "".join(f"x{number},b{number}\n" for number in range(5)))
    assert run(str(one), tmp_path) == 0
    assert "warning" not in capsys.readouterr().out
    both = ["--input", str(one), str(two)]
    assert run(str(one), tmp_path, *both, "--resume") == 0
    shown = capsys.readouterr().out
    assert "warning:      5 rows had the id of another row, such as x" in shown
    assert "warning:      5 rows had the id of a row that was answered before, such as x" in shown
    assert len(rows_of(tmp_path, "out/c-*.jsonl")) == 10
    assert run(str(one), tmp_path, *both, "--resume") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run(str(one), tmp_path, "--resume", "--template", "Say {prompt}") == 0
    assert "nothing to do" in capsys.readouterr().out, "a better template is for what failed"

"""The command as a user starts it: help, statuses, what is told, and what an interrupt leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

import millrace as millrace_package
from millrace.model_manager.client.status import read_status
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.pipelines.cli import dispatch
from tests.job_commands import job_command, started
from tests.pipelines.answers import answered
from tests.pipelines.refusals import Refused
from tests.terminals import lines_of, on_terminal
from tests.waiting import eventually


def millrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_help_and_version_need_no_beam() -> None:
    code = "import sys; from millrace.pipelines.cli import dispatch; dispatch(['--help']); dispatch(['--version'])"
    code += "; assert 'apache_beam' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True).stdout
    assert "usage: millrace" in shown
    assert f"millrace {version('beam-millrace')}\n" in shown


def test_the_version_is_the_installed_distributions() -> None:
    assert millrace_package.__version__ == version("beam-millrace")
    assert millrace("--version").stdout == f"millrace {millrace_package.__version__}\n"


@pytest.mark.parametrize("arguments", [["rn"], ["stop", "a", "b"], ["ps", "--jsn"]])
def test_a_wrong_command_is_one_sentence_and_status_2(arguments: list[str], refused: Refused) -> None:
    assert refused(*arguments)


def test_a_wrong_flag_is_one_sentence_and_status_2(refused: Refused) -> None:
    assert refused.run("--inptu", "a.jsonl") == "millrace: unknown flag --inptu: did you mean --input?\n"


@pytest.mark.usefixtures("runtime")
def test_one_of_a_thing_is_told_as_one_and_a_named_model_without_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\nbad\n')
    flags = ["--input", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out/c", "--backend", "fake", "--linger", "0.1"]
    assert dispatch(["run", *flags, "--model", str(resolve(EMBEDDED_MODEL))]) == 0
    said = capsys.readouterr()
    assert "1 completion in " in said.out
    assert "dead letters: 1 row in " in said.out
    assert "demo" not in said.out + said.err


def test_a_run_can_be_watched_and_stopped(runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    output = f"{tmp_path}/out/c"
    flags = ["--input", f"{tmp_path}/a.txt", "--output", output, "--backend", "fake", "--linger", "300"]
    ended = millrace("run", *flags)
    assert ended.returncode == 0, ended.stderr
    assert "2 completions" in ended.stdout
    demo = "model:        millrace-tiny, the small demo model: --model names yours"
    assert demo in ended.stderr.splitlines(), "at the start"
    assert "demo" not in ended.stdout, "and once"
    assert "Traceback" not in ended.stderr
    answered("ps")
    assert re.search(r"millrace-tiny@folder-\w+ \(none\): ready", capsys.readouterr().out), "name, revision, formats"
    answered("ps", "--json")
    status = json.loads(capsys.readouterr().out)
    assert status["jobs"][0]["finished"] == 2
    assert re.match(rf"run to {output}, \w+$", status["jobs"][0]["job"])
    assert dispatch(["run", *flags, "--overwrite", "--max_num_seqs", "5"]) == 0
    again = capsys.readouterr()
    told = [line for line in (again.err + again.out).splitlines() if "max_num_seqs=64 (asked for: 5)" in line]
    assert len(told) == 2, "in the log and in the summary"
    assert dispatch(["stop", "other"]) == 2
    assert "millrace-tiny" in capsys.readouterr().err
    assert dispatch(["stop"]) == 0
    assert dispatch(["ps"]) == 0
    assert "nothing is running" in capsys.readouterr().out
    assert read_status(runtime) is None


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_a_failure_in_a_worker_process_is_one_sentence_without_a_stack(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\nbad\n')
    flags = ["--input", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out/c", "--backend", "fake", "--fail_fast"]
    ended = millrace("run", *flags, "--direct_running_mode=multi_processing", "--direct_num_workers=2")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"millrace: the job failed: {tmp_path}/a.jsonl@6: not JSON")
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]])
@pytest.mark.usefixtures("runtime")
def test_an_interrupt_is_one_sentence_keeps_the_rows_and_leaves_no_process(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(f"{n} {'x ' * 100}") + "\n" for n in range(20_000)))
    command = job_command("run", f"{tmp_path}/a.jsonl", f"{tmp_path}/out/c")
    command += ["--backend=fake", *workers, "--max_tokens=200", "--linger=0.1", "--orphan_grace=0.1"]

    def wrote() -> bool:
        assert process.poll() is None
        return any(path.stat().st_size for path in tmp_path.glob("out/c.tmp/*/completions-*"))

    with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(wrote)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=300)
    assert process.returncode == 130
    last = shown.splitlines()[-1]
    assert last == f"millrace: interrupted; --resume goes on from what is in {tmp_path}/out/c.tmp"
    assert "Traceback" not in shown
    _, alive = psutil.wait_procs(children, timeout=300)
    assert [child for child in alive if child.is_running()] == []
    assert list(tmp_path.glob("out/c.tmp/*/completions-*"))


@pytest.mark.usefixtures("runtime")
def test_on_a_terminal_a_log_line_stands_above_the_progress_line(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"question {number}", "max_token": 4}) for number in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    flags = ["--input", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out/c", "--backend", "fake", "--linger", "0.1"]
    with on_terminal([sys.executable, "-m", "millrace", "run", *flags]) as job:
        shown = job.ended(300)
    assert job.process.returncode == 0, shown
    (logged,) = [line for line in lines_of(shown) if "column 'max_token' is no parameter" in line]
    assert logged.startswith("W "), "not behind the progress line"
    assert "starting" in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("'run'", "--input is missing"),
        ("'show', 'nosuch@0'", "no format is known"),
        ("'show', 'a.csv@0'", "a.csv@0: takes"),
    ],
)
def test_what_is_wrong_at_first_sight_is_told_without_loading_beam(arguments: str, told: str) -> None:
    code = f"import sys; from millrace.pipelines.cli import dispatch; print(dispatch([{arguments}]), *sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told in ended.stderr
    status, *modules = ended.stdout.split()
    assert status == "2"
    assert not {"apache_beam", "pyarrow"} & set(modules)


def in_shell(script: str) -> subprocess.CompletedProcess[str]:
    """`$M` is the command."""
    environment = os.environ | {"M": f"{sys.executable} -m millrace"}
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.mark.usefixtures("runtime")
def test_closed_streams_are_as_dev_null(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    flags = f"--input {tmp_path}/a.txt --output {tmp_path}/out/c --backend fake --linger 0.1"
    assert in_shell(f"$M run {flags} <&- >&- 2>&-").returncode == 0
    assert len(list(tmp_path.glob("out/c-*"))) == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
@pytest.mark.usefixtures("runtime")
def test_a_closed_stream_is_as_dev_null(closed: str) -> None:
    for command in ("--version", "ps"):
        ended = in_shell(f"$M {command} {closed}")
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.usefixtures("runtime")
def test_a_job_whose_summary_cannot_be_printed_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    ended = in_shell(
        f"$M run --input {tmp_path}/a.txt --output {tmp_path}/out/c --backend fake --linger 0.1 > /dev/full"
    )
    assert ended.returncode == 0, ended.stderr
    assert "the job is done, and its summary is lost: stdout cannot be written: No space" in ended.stderr


@pytest.mark.usefixtures("runtime")
def test_a_quiet_job_whose_rows_all_failed_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "max_tokens": -1}\n')
    flags = ["--input", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out/c", "--backend", "fake", "--linger", "0.1"]
    assert dispatch(["run", *flags, "--quiet"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("millrace: every row failed; dead letters: 1 row in ")


@pytest.mark.usefixtures("runtime")
def test_a_command_that_cannot_print_what_it_shows_says_so() -> None:
    ended = in_shell("$M ps > /dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "millrace: stdout cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "module", ["millrace.pipelines.cli", "millrace.pipelines.commands.job_commands", "apache_beam"]
)
def test_an_interrupt_during_any_import_ends_quietly(module: str) -> None:
    program = f"""
import builtins, os, signal, sys
from millrace.__main__ import main
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["millrace", "run", "--help"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")

"""What a job that fails for good says on stderr, and that --resume finishes it.

The disk of the output is full, or no manager can be started any more.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.storms.confined import confined
from tests.forked_commands import run
from tests.job_commands import job_command, started
from tests.json_lines import rows_of, write_rows
from tests.pipelines.job.job_processes import caught, go_on, ids, nothing_is_left

ROWS = 400
WITHIN = 300.0
_NOTE = "n" * 1000
_ROOM = 128 * 1024
"""Bytes of the small disk. The output needs more than three times as many."""
_NAMESPACES = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])
"""A process with mounts of its own: as root, and as a user."""
_KILLED_AT_ITS_START = """
import os, signal, sys
if "millrace.model_manager.manager.process" in sys.orig_argv and os.path.exists({mark!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows with a column of 1,000 bytes, which the output has too."""
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    rows = ({"id": f"p{n}", "prompt": f"question {n}", "max_tokens": 10 + n % 20, "note": _NOTE} for n in range(ROWS))
    return write_rows(tmp_path / "prompts.jsonl", rows)


def command(prompts: Path, output: Path, *flags: str) -> list[str]:
    """`millrace run`. No process counts as dead because this machine is busy."""
    quick = ["--hang_timeout=120", "--linger=0.5", "--orphan_grace=0.5", "--backend=fake"]
    return [*job_command("run", prompts, output / "c"), *quick, *flags]


def says_how_to_go_on(shown: str, output: Path, reason: str) -> None:
    """The last line of stderr names the reason, and what --resume goes on from."""
    last = shown.splitlines()[-1]
    assert last.startswith("millrace: the job failed: "), shown
    assert reason in last
    assert f"; --resume goes on from what is in {output}/c.tmp" in last


def is_whole(output: Path) -> None:
    """0 lost, 0 doubled, no dead letters."""
    assert ids(output) == sorted(f"p{n}" for n in range(ROWS))
    assert all(row["columns"]["note"] == _NOTE for row in rows_of(output, "c-*.jsonl"))
    assert not list(output.glob("*dead_letters*"))
    assert not (output / "c.tmp").exists()


def _namespace() -> list[str]:
    """The command that gives a process mounts of its own. Skips the test where this machine lets nobody have one."""
    for each in _NAMESPACES:
        tried = [*each, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if shutil.which("unshare") and subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return each
    pytest.skip("takes the right to mount: root's, or a user namespace")


def test_a_job_whose_disk_is_full_says_how_to_go_on(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    namespace, output, seen = _namespace(), tmp_path / "out", tmp_path / "seen"
    output.mkdir()
    (temporary := tmp_path / "tmp").mkdir()
    first, again = (shlex.join(command(prompts, output, *flags)) for flags in ([], ["--resume"]))
    steps = f"""
        mount -t tmpfs -o size={_ROOM} tmpfs {output} || exit 99
        {first} 2> {tmp_path}/first
        echo $?
        ls {output}/c.tmp/*/completions-* | wc -l
        mount -o remount,size=64m {output}
        {again} 2> {tmp_path}/again > {tmp_path}/summary
        echo $?
        cp -r {output} {seen}
    """
    env = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        [*namespace, "sh", "-c", steps], capture_output=True, text=True, check=False, timeout=2 * WITHIN, env=env
    )
    says_how_to_go_on((tmp_path / "first").read_text(), output, "No space left on device")
    status, shards, status_again = map(int, done.stdout.split()[-3:])
    assert (status, status_again) == (1, 0), done.stderr + (tmp_path / "again").read_text()
    assert shards > 0, "else --resume would have had nothing to go on from"
    is_whole(seen)
    nothing_is_left(runtime)
    assert list(temporary.iterdir()) == []


def test_a_job_whose_file_may_not_grow_says_how_to_go_on(runtime: Path, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    limited = confined(command(prompts, output), {resource.RLIMIT_FSIZE: _ROOM // 4}, [])
    failed = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=WITHIN)
    assert failed.returncode == 1, failed.stderr
    says_how_to_go_on(failed.stderr, output, "File too large")
    _resumed(prompts, output)
    nothing_is_left(runtime)


def test_a_job_that_loses_its_manager_for_good_says_how_to_go_on(
    runtime: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is short, the kernel kills each manager as it starts."""
    at_start, mark = tmp_path / "at_start", tmp_path / "no more managers"
    at_start.mkdir()
    (at_start / "sitecustomize.py").write_text(_KILLED_AT_ITS_START.format(mark=str(mark)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(at_start), os.environ.get("PYTHONPATH", "")]))
    output = tmp_path / "out"

    def job() -> AbstractContextManager[subprocess.Popen[str]]:
        return started(command(prompts, output), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    with caught(job, runtime, output, ROWS) as (process, pids):
        mark.touch()
        os.kill(pids["manager"], signal.SIGKILL)
        go_on(process.pid)
        _, shown = process.communicate(timeout=WITHIN)
    assert process.returncode == 1, shown
    says_how_to_go_on(shown, output, "the manager was killed by SIGKILL at each of 5 starts")
    mark.unlink()
    _resumed(prompts, output)
    nothing_is_left(runtime)


def _resumed(prompts: Path, output: Path) -> None:
    resumed = run(command(prompts, output, "--resume"), timeout=WITHIN)
    assert resumed.returncode == 0, resumed.stderr
    is_whole(output)

"""The main job with prompts and output on s3://, and real processes, while requests fail."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from pyarrow import BufferReader

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.places import bucket_claims
from millrace.pipelines.places.claimant import Claimant
from millrace.pipelines.places.claims import claimed_files
from millrace.transforms.addresses import Files
from millrace.transforms.files import s3_client
from tests.job_commands import job_command, started
from tests.servers.faulty_http import ALWAYS, Fault, FaultyProxy, Held, Lost, Request, Reset, Status, Truncated
from tests.servers.s3 import S3Bucket, calls, s3

pytestmark = pytest.mark.runners

_WITHIN = 300.0
CLAIM = "out/.millrace/c.claim"
_SOON = """
from millrace.pipelines.cli import main
from millrace.transforms.files import s3_client
s3_client.GIVEN_UP_AFTER = 1.0
main()
"""
"""The command of a process that does not try a request for minutes."""
ROWS = [{"id": f"r{number}", "prompt": f"What is {number} + 1?"} for number in range(60)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    with s3(tmp_path_factory.mktemp("s3")) as proxy:
        yield proxy


@pytest.fixture
def bucket(server: FaultyProxy) -> Iterator[S3Bucket]:
    bucket = S3Bucket(server)
    for number in range(2):
        lines = [json.dumps(row) + "\n" for row in ROWS[number::2]]
        bucket.put(f"in/rows-{number}.jsonl", "".join(lines).encode())
    yield bucket
    server.heal()


class Runs:
    """`millrace` in processes that reach the bucket."""

    def __init__(self, bucket: S3Bucket, folder: Path) -> None:
        self._bucket = bucket
        (folder / "tmp").mkdir()
        own = {"MILLRACE_RUNTIME_DIR": str(folder / "rt"), "TMPDIR": str(folder / "tmp")}
        self._environment = {**os.environ, **bucket.surroundings, **own}

    def run(self, output: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """A job from the bucket to the bucket."""
        return self._ended(self._job(output, *flags))

    def run_impatient(self, output: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """The same, with requests that are given up after a second."""
        return self._ended([sys.executable, "-c", _SOON, *self._job(output, *flags)[3:]])

    def begun(self, output: str, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        """The same, while it runs."""
        return started(self._job(output, *flags), env=self._environment, stderr=subprocess.PIPE)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any of its commands, by the arguments after `python -m`."""
        return self._ended([*job_command("", "", "")[:2], *arguments])

    def _job(self, output: str, *flags: str) -> list[str]:
        address = self._bucket.address
        command = job_command("run", f"{address}/in/*.jsonl", f"{address}/{output}")
        return [*command, "--backend=fake", "--max_tokens=4", "--linger=0.5", *flags]

    def _ended(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=_WITHIN, check=False
        )


@pytest.fixture
def runs(bucket: S3Bucket, tmp_path: Path) -> Runs:
    return Runs(bucket, tmp_path)


def rows(bucket: S3Bucket, prefix: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in bucket.names(prefix) for line in bucket.get(name).splitlines()]


def test_a_job_is_answered_resumed_replaced_viewed_and_planned(bucket: S3Bucket, runs: Runs, tmp_path: Path) -> None:
    bucket.put("in/rows-0.jsonl", bucket.get("in/rows-0.jsonl") + b"bad\n")
    ended = runs.run("out/c")
    assert ended.returncode == 0, ended.stderr
    assert sorted(row["id"] for row in rows(bucket, "out/c-")) == sorted(row["id"] for row in ROWS)
    assert [row["row"] for row in rows(bucket, "out/c.dead_letters-")] == ["bad"]
    assert "What is " in bucket.get("out/c.report.html").decode()
    assert bucket.names("out/c.tmp") == []

    bucket.put("in/rows-2.jsonl", b'{"id": "new", "prompt": "What else?"}\n')
    refused = runs.run("out/c", "--quiet")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--resume adds what is missing" in refused.stderr
    before = rows(bucket, "out/c-")
    assert runs.run("out/c", "--resume").returncode == 0
    assert [row for row in rows(bucket, "out/c-") if row["id"] != "new"] == before
    assert len(rows(bucket, "out/c-")) == len(ROWS) + 1

    replaced = runs.run("out/c", "--overwrite", "--output_format=parquet")
    assert replaced.returncode == 0, replaced.stderr
    table = pq.read_table(BufferReader(bucket.get(bucket.names("out/c-")[0])))
    assert sorted(table["id"].to_pylist()) == sorted([*(row["id"] for row in ROWS), "new"])

    page = tmp_path / "page.html"
    looked = runs.command("millrace", "view", f"{bucket.address}/out/c", "--output", str(page))
    assert looked.returncode == 0, looked.stderr
    assert "r59" in page.read_text()
    planned = runs.command(
        "millrace", "plan", "--input", f"{bucket.address}/in/*.jsonl", "--tokens_per_second=9", "--json"
    )
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["input"]["rows"] == len(ROWS) + 2


def test_flags_name_files_of_a_bucket(bucket: S3Bucket, runs: Runs) -> None:
    bucket.put("flags/colour.json", b'{"enum": ["red", "blue"]}')
    places = [f"--constraint={bucket.address}/flags/colour.json", f"--report={bucket.address}/out/f.html"]
    ended = runs.run("out/f", *places, "--max_tokens=20")
    assert ended.returncode == 0, ended.stderr
    assert {row["text"] for row in rows(bucket, "out/f-")} <= {'"red"', '"blue"'}
    assert b"</html>" in bucket.get("out/f.html")


READ_FAULTS: list[Fault] = [Status(503), Lost(), Reset(100), Truncated(100, "part")]
WRITE_FAULTS: list[Fault] = [Status(503), Lost()]
END_FAULTS: list[Fault] = [Lost(), Status(404)]


def test_requests_that_fail_are_made_again(bucket: S3Bucket, runs: Runs) -> None:
    of_reads, of_writes = calls("GET", "in/rows"), calls("PUT", "out/c")
    rules = [bucket.proxy.inject(fault, of_reads, after=number) for number, fault in enumerate(READ_FAULTS)]
    rules += [bucket.proxy.inject(fault, of_writes, after=number) for number, fault in enumerate(WRITE_FAULTS)]
    ended = runs.run("out/c")
    assert ended.returncode == 0, ended.stderr
    assert sorted(row["id"] for row in rows(bucket, "out/c-")) == sorted(row["id"] for row in ROWS)
    assert sum(rule.happened for rule in rules) == len(rules)


def test_an_upload_that_is_complete_may_be_answered_404_when_asked_again(bucket: S3Bucket, runs: Runs) -> None:
    of_ends = calls("POST", "uploadId")
    rules = [bucket.proxy.inject(fault, of_ends, after=number) for number, fault in enumerate(END_FAULTS)]
    ended = runs.run("out/c")
    assert (ended.returncode, [rule.happened for rule in rules]) == (0, [1, 1]), ended.stderr
    assert sorted(row["id"] for row in rows(bucket, "out/c-")) == sorted(row["id"] for row in ROWS)

    bucket.proxy.inject(Status(404), of_ends)
    refused = runs.run("out/d")
    assert refused.returncode == 1
    assert "404) when calling the CompleteMultipartUpload operation" in refused.stderr


@pytest.mark.parametrize(("method", "what"), [("GET", "in/rows"), ("PUT", "out/c")])
def test_what_stays_refused_is_one_sentence(bucket: S3Bucket, runs: Runs, method: str, what: str) -> None:
    bucket.proxy.inject(Status(403), calls(method, what), ALWAYS)
    ended = runs.run("out/c", "--quiet")
    assert ended.returncode in (1, 2)
    assert re.fullmatch(rf"millrace: .*s3://\S+/{what}.*403.*\n", ended.stderr), ended.stderr
    assert bucket.names("out/c-") == []


PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def each_row_once(bucket: S3Bucket, runs: Runs) -> None:
    """A resumed job completes the output."""
    resumed = runs.run("out/c", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(row["id"] for row in rows(bucket, "out/c-")) == sorted(row["id"] for row in ROWS)
    assert bucket.names("out/c.tmp") == []


def test_what_boto3_has_given_up_is_tried_again(bucket: S3Bucket, runs: Runs) -> None:
    rule = bucket.proxy.inject(Lost(), calls("PUT", "out/c.tmp"), times=5)
    ended = runs.run("out/c")
    assert (ended.returncode, rule.happened) == (0, 5), ended.stderr
    assert "S3 fails, trying again for 120 s" in ended.stderr


def lost_from(bucket: S3Bucket, fault: Fault, method: str, path: str) -> threading.Event:
    """The whole bucket has the fault from a request to a path on; the event is that request."""
    reached = threading.Event()

    def is_hit(request: Request) -> bool:
        if calls(method, path)(request):
            reached.set()
        return reached.is_set()

    bucket.proxy.inject(fault, is_hit, ALWAYS)
    return reached


@pytest.mark.parametrize(
    ("written", "flags"),
    [("out/c.tmp", []), ("out/c.tmp", PROCESSES), ("out/c.report.html", [])],
    ids=["threads", "processes", "report"],
)
def test_a_job_whose_store_goes_away_is_interrupted_at_once_and_goes_on_later(
    bucket: S3Bucket, runs: Runs, written: str, flags: list[str]
) -> None:
    release = threading.Event()
    with runs.begun("out/c", "--quiet", *flags) as job:
        assert lost_from(bucket, Held(threading.Event(), release), "PUT", written).wait(_WITHIN)
        job.send_signal(signal.SIGINT)
        _, told = job.communicate(timeout=_WITHIN)
        assert not release.is_set(), "no answer came before its end"
        release.set()
    assert job.returncode == 130
    assert f"millrace: interrupted; {bucket.address} does not answer; when it does again, --resume goes on" in told
    bucket.proxy.heal()
    each_row_once(bucket, runs)


def test_a_second_interruption_ends_a_job_whose_store_is_away(bucket: S3Bucket, runs: Runs) -> None:
    looked = threading.Event()

    def spied(request: Request) -> bool:
        if "c.settings.json" in request.path:
            looked.set()
        return False

    bucket.proxy.inject(Status(503), spied, ALWAYS)
    with runs.begun("out/c", "--quiet") as job:
        assert lost_from(bucket, Status(503), "PUT", "out/c.tmp").wait(_WITHIN)
        looked.clear()
        job.send_signal(signal.SIGINT)
        assert looked.wait(_WITHIN), "it asks whether the store answers"
        job.send_signal(signal.SIGINT)
        _, told = job.communicate(timeout=s3_client.GIVEN_UP_AFTER / 2)  # nothing more is asked of it, and tried again
    assert job.returncode == 130
    assert f"{bucket.address} was not waited for; once it answers, --resume goes on" in told
    bucket.proxy.heal()
    each_row_once(bucket, runs)


def test_a_store_that_refuses_in_the_middle_is_said_to_refuse(bucket: S3Bucket, runs: Runs) -> None:
    lost_from(bucket, Status(403), "PUT", "out/c.tmp")
    ended = runs.run("out/c", "--quiet")
    assert ended.returncode == 1
    assert re.search(
        rf"403.*; {bucket.address} refuses what it is asked; when it allows that again, --resume", ended.stderr
    ), ended.stderr
    bucket.proxy.heal()
    each_row_once(bucket, runs)


def test_a_store_that_stays_away_ends_the_job_with_one_sentence(bucket: S3Bucket, runs: Runs) -> None:
    lost_from(bucket, Lost(), "PUT", "out/c.tmp")
    ended = runs.run_impatient("out/c")
    assert ended.returncode == 1
    assert re.search(
        rf"^millrace: the job failed: {bucket.address}/out/c\S+: cannot be written: the store keeps failing: .*; "
        rf"{bucket.address} does not answer; when it does again, --resume goes on .*$",
        ended.stderr,
        re.MULTILINE,
    ), ended.stderr
    bucket.proxy.heal()
    each_row_once(bucket, runs)


@pytest.fixture
def claiming(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Files:
    """An output that this process may claim."""
    for name, value in bucket.surroundings.items():
        monkeypatch.setenv(name, value)
    FileSystems.set_options(PipelineOptions([]))
    return Files(f"{bucket.address}/out/c")


def test_a_second_job_is_refused_while_one_writes_the_output(bucket: S3Bucket, runs: Runs, claiming: Files) -> None:
    with claimed_files("--output", claiming):
        assert bucket.names("out/") == [CLAIM]
        refused = runs.run("out/c", "--quiet")
        assert refused.returncode == 2
        assert re.search(r"another job writes s3://\S+/out/c \(pid \d+ on host", refused.stderr)
    assert bucket.names("out/") == []
    assert runs.run("out/c").returncode == 0
    assert CLAIM not in bucket.names("out/")


def test_a_killed_jobs_claim_is_taken_over_once_it_is_stale(
    bucket: S3Bucket, claiming: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(CLAIM, Claimant(1, "gone", "2026-01-01 00:00:00 UTC").encoded())
    with pytest.raises(ConfigError, match="pid 1 on host gone"), claimed_files("--output", claiming):
        pass
    bucket.put(CLAIM, Claimant(1, "gone", "").encoded().replace(b":1,", b":9999999999999999999999,"))
    with pytest.raises(ConfigError, match="another job writes"), claimed_files("--output", claiming):
        pass
    monkeypatch.setattr(bucket_claims, "STALE_AFTER", -1.0)
    with claimed_files("--output", claiming):
        assert b"gone" not in bucket.get(CLAIM)
    assert bucket.names("out/") == []


def test_the_claim_of_a_process_of_this_machine_that_has_ended_is_taken_over_at_once(
    bucket: S3Bucket, claiming: Files
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    of_here = Claimant.this_process()
    bucket.put(CLAIM, msgspec.structs.replace(of_here, pid=ended.pid, space="another").encoded())
    with pytest.raises(ConfigError, match=f"pid {ended.pid} on host"), claimed_files("--output", claiming):
        pass
    bucket.put(CLAIM, msgspec.structs.replace(of_here, pid=ended.pid).encoded())
    with claimed_files("--output", claiming):
        pass
    assert bucket.names("out/") == []


def test_a_claim_whose_answer_is_lost_is_ones_own_and_another_is_left(
    bucket: S3Bucket, claiming: Files, caplog: pytest.LogCaptureFixture
) -> None:
    rule = bucket.proxy.inject(Lost(), calls("PUT", ".claim"))
    with claimed_files("--output", claiming):
        assert rule.happened
        bucket.put(CLAIM, b"another's")
    assert bucket.get(CLAIM) == b"another's"
    ours = bucket_claims._Claim(f"{claiming}".replace("out/c", CLAIM))
    assert not ours.take()
    ours.renew()
    assert "another job has taken this output over" in caplog.text


def test_a_store_without_conditions_is_written_and_told(
    bucket: S3Bucket, claiming: Files, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.proxy.inject(Status(501), calls("PUT", ".claim"), ALWAYS)
    with claimed_files("--output", claiming):
        assert "cannot hold a claim" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot be reached: EndpointConnectionError"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "cannot be reached: NoCredentialsError"),
        ({"AWS_DEFAULT_REGION": "no region"}, "cannot be reached: InvalidRegionError"),
    ],
)
def test_a_store_that_cannot_be_reached_is_told_at_once(
    bucket: S3Bucket, tmp_path: Path, wrong: dict[str, str], told: str
) -> None:
    bucket.surroundings |= wrong | {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": str(tmp_path / "none")}
    ended = Runs(bucket, tmp_path).run("out/c", "--quiet")
    assert ended.returncode in (1, 2)
    assert (told in ended.stderr, ended.stderr.count("\n")) == (True, 1), ended.stderr


def test_a_missing_bucket_is_named(runs: Runs, bucket: S3Bucket) -> None:
    command = job_command("run", f"{bucket.address}/in/*.jsonl", "s3://no-such-bucket/out/c")
    ended = runs.command(*command[2:], "--backend=fake", "--quiet")
    assert ended.returncode in (1, 2)
    assert ended.stderr == "millrace: --output s3://no-such-bucket/out/c: there is no bucket no-such-bucket\n"


def test_show_prints_a_row_of_a_bucket(runs: Runs, bucket: S3Bucket) -> None:
    shown = runs.command("millrace", "show", f"{bucket.address}/in/rows-0.jsonl@0")
    assert (shown.returncode, json.loads(shown.stdout)) == (0, ROWS[0])

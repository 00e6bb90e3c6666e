"""Jobs whose rows go to servers over HTTP, as a person sees them: real processes, and real sockets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.job_commands import job_command
from tests.model_manager.backends.stand_in_server import Servers, serving


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serving() as found:
        yield found


def run(folder: Path, url: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A job of three rows, on a runtime folder that the jobs of a test share."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": str(n), "prompt": f"row {n}"}) + "\n" for n in range(3)))
    command = [*job_command("run", rows, folder / "out"), "--model", "m", "--endpoint", url, "--overwrite", *flags]
    # /tmp: a socket's path may have 107 characters
    env = os.environ | {"MILLRACE_RUNTIME_DIR": str(folder / "run"), **variables}
    return subprocess.run(command, env=env, text=True, capture_output=True, check=False, timeout=120)


def test_a_person_reads_why_requests_are_sent_again(servers: Servers, tmp_path: Path) -> None:
    busy: Any = (429, {"Retry-After": "1"})
    server = servers.start(lambda _prompt, tries: busy if tries <= 2 else None)
    job = run(tmp_path, server.url)
    assert job.returncode == 0, job.stderr
    assert "a request is sent again after 1 s, as the server asks" in job.stderr
    assert "answered 429: no row" in job.stderr


def test_a_key_goes_to_the_servers_of_its_own_job_alone(servers: Servers, tmp_path: Path) -> None:
    alice, bob = servers.start(key="alice-1"), servers.start(key="bob-2")
    first = run(tmp_path, alice.url, "--linger", "30", "--backend_options", "key_env=MY_KEY", MY_KEY="alice-1")
    assert first.returncode == 0, first.stderr
    second = run(tmp_path, bob.url, "--backend_options", "key_env=MY_KEY", MY_KEY="bob-2")
    assert second.returncode == 2, second.stderr
    assert "this machine's manager was started without this value of MY_KEY" in second.stderr
    third = run(tmp_path, bob.url, "--backend_options", "key_env=MY_KEY")
    assert third.returncode == 2, third.stderr
    assert "key_env" in third.stderr
    assert not bob.seen


def test_a_key_that_is_withdrawn_in_mid_job_is_a_failed_job_in_one_sentence(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(lambda prompt, _tries: 401 if prompt == "row 2" else None)
    job = run(tmp_path, server.url)
    assert job.returncode == 1
    said = [line for line in job.stderr.splitlines() if line.startswith("millrace: ")]
    assert len(said) == 1
    assert said[0].startswith(f"millrace: the job failed: {server.url}")
    why = "answered 401: no row 2; it refuses a request without a key (the option key_env names its variable)"
    assert why in said[0]
    assert said[0].endswith(f"; --resume goes on from what is in {tmp_path}/out.tmp")
    assert "Traceback" not in job.stderr

"""Ray Serve with a deployment on two replicas: as a remote server, and as one that millrace starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest
from tests.model_manager.backends.endpoint_engines import asked, drained, engine_for, refusal, text
from tests.model_manager.backends.real_servers import (
    Family,
    counted,
    environment_of,
    expect_answers_over_a_death,
    expect_the_job_to_fail,
    family,
    kill,
    main_process,
    ray_folder,
    remote,
    serve_config,
    short_folder,
)
from tests.model_manager.manager.machine import Machine, machine
from tests.servers.processes import free_port
from tests.waiting import eventually

__all__ = ["family", "machine", "ray_folder", "short_folder"]

pytestmark = pytest.mark.engines

HELD = {f"held {number} is a row of nine words é": 1 + number % 8 for number in range(60)}


@pytest.fixture
def serve(ray_folder: Path) -> Path:
    """The `serve` program, which has a folder for its files."""
    assert ray_folder.exists()
    return environment_of("ray").with_name("serve")


def replicas(folder: Path) -> dict[int, int]:
    """How many prompts each replica that ever started has seen, by process id."""
    files = folder.glob("replica-*")
    return {int(path.name.removeprefix("replica-")): len(path.read_text().splitlines()) for path in files}


def kill_a_replica(folder: Path) -> int:
    """One of the two, which holds rows; then the other rows may go on."""
    eventually(lambda: sum(replicas(folder).values()) >= len(HELD), "rows that are held")
    seen = replicas(folder)
    victim = max(seen, key=seen.__getitem__)
    kill(victim)
    (folder / "release").touch()
    return seen[victim]


def test_a_replica_that_is_killed_in_mid_job_costs_no_row_and_a_cluster_that_is_gone_ends_the_job(
    family: Family, tmp_path: Path, serve: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options: dict[str, Any] = {"dialect": "openai-completions"}
    long = "word " * 65
    with remote([serve, "run", serve_config(tmp_path, port)], f"{url}/-/healthz", tmp_path / "log"):
        eventually(lambda: len(replicas(tmp_path)) == 2, "two replicas")
        with engine_for(url, **options) as engine:
            for prompt, words in HELD.items():
                engine.add(asked(prompt, max_tokens=words))
            engine.add(asked("one stop here", stop=("stop",)))
            engine.add(asked("hot", temperature=3.0))
            with pytest.raises(InvalidRequest, match="top_k=4: the dialect openai-completions does not take it"):
                engine.add(asked("refused here", top_k=4))
            with pytest.raises(InvalidRequest, match="constraint: the dialect openai-completions takes no constraint"):
                engine.add(asked("typed", constraint=Constraint(json=True)))
            engine.add(asked("seeded", seed=2**40 + 1))
            engine.add(asked(long))
            assert kill_a_replica(tmp_path) > 0
            found = drained(engine)
        assert refusal(found.pop("hot")) == ("InvalidRequest", f"{url} answered 400: temperature: takes 0 to 2")
        assert text(found.pop("one stop here")) == "one"
        assert text(found.pop("seeded")) == "seeded seed=1099511627777"
        assert refusal(found.pop(long)) == ("InvalidRequest", f"{url} answered 400: maximum context length is 64 words")
        assert {key: text(each) for key, each in found.items()} == {key: counted(key, n) for key, n in HELD.items()}
        assert sum(replicas(tmp_path).values()) > len(HELD) + 2  # rows of the replica were sent again
        with engine_for(url, down_timeout=1, **options) as engine:
            family.kill()
            engine.add(asked("in vain"))
            expect_the_job_to_fail(engine)


def test_a_cluster_of_ours_that_is_killed_in_mid_job_is_started_again_and_ends_whole(
    family: Family, machine: Machine, tmp_path: Path, serve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the preset's own command, with `serve` on the PATH."""
    monkeypatch.setenv("PATH", f"{serve.parent}:{os.environ['PATH']}")
    port = free_port()
    config = str(serve_config(tmp_path, port))
    options: dict[str, Any] = {"preset": "ray", "port": port, "served_model": "m", "dialect": "openai-completions"}
    settings: dict[str, Any] = {"model": config, "max_num_seqs": len(HELD), "backend_options": options}
    client = machine.open(command=MANAGER_COMMAND, backend="server", **settings)
    expect_answers_over_a_death(
        client,
        HELD,
        held=lambda: sum(replicas(tmp_path).values()) >= 30,
        server=lambda: main_process(family, config),
        release=tmp_path / "release",
    )
    assert machine.model_status().restarts == 1
    client.close()
    eventually(lambda: not family.left(), "the end of Ray and all its processes")

"""NVIDIA's Triton on a CPU, over HTTP and gRPC: as a remote server, and as one that millrace starts."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import InvalidRequest, ModelError
from tests.model_manager.backends.endpoint_engines import asked, drained, engine_for, refusal, text
from tests.model_manager.backends.real_servers import (
    PATIENCE,
    PROGRAMS,
    ROWS,
    Family,
    counted,
    expect_answers_over_a_death,
    expect_the_job_to_fail,
    family,
    main_process,
    python_of,
    remote,
    short_folder,
)
from tests.model_manager.manager.machine import Machine, machine
from tests.servers.processes import free_port
from tests.waiting import eventually

__all__ = ["family", "machine", "short_folder"]

pytestmark = pytest.mark.engines

READY = "/v2/models/m/ready"
DIALECTS = (("http", "triton"), ("http", "kserve"), ("grpc", "kserve"))


@pytest.fixture(autouse=True)
def _no_files_left() -> Iterator[None]:
    """Triton that is killed leaves its shared memory and a folder, whose names it makes up. What another process has
    mapped is that process's.
    """
    before = _files()
    yield
    for path in _files() - before:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not _is_mapped(path):
            path.unlink(missing_ok=True)


def _is_mapped(path: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text(errors="replace"):
                return True
    return False


def _files() -> set[Path]:
    return {*Path("/dev/shm").glob("pytrtion*"), *Path("/dev/shm").glob("psm_*"), *Path("/tmp").glob("folder??????")}


class Triton:
    """Where it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"http": free_port(), "grpc": free_port()}
        self.log = folder / "log"

    @property
    def command(self) -> list[str]:
        program = str(PROGRAMS / "triton.py")
        return [*python_of("pytriton"), program, str(self.ports["http"]), str(self.ports["grpc"]), str(self.folder)]

    @property
    def health(self) -> str:
        return self.url("http") + READY

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.ports[scheme]}"


@pytest.fixture
def triton(family: Family, short_folder: Path) -> Iterator[Triton]:
    found = Triton(short_folder)
    with remote(found.command, found.health, found.log):
        yield found
        family.kill()


def test_rows_with_parameters_of_their_own_are_answered(triton: Triton) -> None:
    for scheme, dialect in DIALECTS:
        with engine_for(triton.url(scheme), dialect=dialect) as engine:
            for prompt, words in ROWS.items():
                engine.add(asked(prompt, max_tokens=words))
            engine.add(asked("one stop here", stop=("stop",)))
            engine.add(asked("seeded", seed=2**40 + 1, temperature=0.5))
            engine.add(asked("two stops", stop=("a", "b")))
            with pytest.raises(InvalidRequest, match=f"top_k=4: the dialect {dialect} with the inputs of m"):
                engine.add(asked("refused here", top_k=4))
            with pytest.raises(
                InvalidRequest,
                match=f"constraint: the dialect {dialect} with the inputs of m takes no constraint, got json",
            ):
                engine.add(asked("typed", constraint=Constraint(json=True)))
            found = drained(engine)
        kind, message = refusal(found.pop("two stops"))
        status = "INVALID_ARGUMENT" if scheme == "grpc" else 400
        assert (kind, f"answered {status}: " in message) == ("InvalidRequest", True)
        assert text(found.pop("one stop here")) == "one "
        assert text(found.pop("seeded")) == "seeded seed=1099511627777 temperature=0.5"
        assert {key: text(each) for key, each in found.items()} == {key: counted(key, n) for key, n in ROWS.items()}
        other: dict[str, Any] = {"model": "n", "dialect": dialect, "retries": 0}
        with pytest.raises(ModelError, match="not ready"), engine_for(triton.url(scheme), **other):
            pass


@pytest.mark.parametrize(("scheme", "dialect"), DIALECTS[1:])
def test_a_server_that_dies_is_waited_for_and_one_that_stays_away_ends_the_job(
    family: Family, short_folder: Path, scheme: str, dialect: str
) -> None:
    triton, held = Triton(short_folder), [f"held {number} of them" for number in range(8)]
    with contextlib.ExitStack() as servers:
        servers.enter_context(remote(triton.command, triton.health, triton.log))
        with engine_for(triton.url(scheme), dialect=dialect, retries=1, down_timeout=PATIENCE) as engine:
            for prompt in held:
                engine.add(asked(prompt, max_tokens=2))
            eventually((short_folder / "held").exists, "a request that is held")
            family.kill()
            (short_folder / "release").touch()
            servers.enter_context(remote(triton.command, triton.health, triton.log))
            assert {key: text(each) for key, each in drained(engine).items()} == {key: counted(key, 2) for key in held}
        with engine_for(triton.url(scheme), dialect=dialect, retries=1, down_timeout=1) as engine:
            family.kill()
            engine.add(asked("in vain"))
            expect_the_job_to_fail(engine)


@pytest.mark.parametrize(("scheme", "dialect"), DIALECTS)
def test_a_triton_of_ours_that_is_killed_in_mid_job_is_started_again(
    family: Family, machine: Machine, short_folder: Path, scheme: str, dialect: str
) -> None:
    grpc_port, program = "{grpc_port}" if scheme == "grpc" else str(free_port()), str(PROGRAMS / "triton.py")
    command = shlex.join([*python_of("pytriton"), program, "{port}", grpc_port, str(short_folder)])
    options = {"preset": "triton", "served_model": "m", "command": command, "health": READY, "dialect": dialect}
    client = machine.open(command=MANAGER_COMMAND, model="m", backend="server", backend_options=options)
    prompts = ROWS | {f"held {number} of them": 2 for number in range(8)}
    expect_answers_over_a_death(
        client,
        prompts,
        held=(short_folder / "held").exists,
        server=lambda: main_process(family, program),
        release=short_folder / "release",
    )
    assert machine.model_status().restarts == 1
    client.close()
    eventually(lambda: not family.left(), "the end of Triton and all its processes")

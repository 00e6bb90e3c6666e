"""The back end `server`: a real program is started, watched, started again, and ended with all that it started."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from millrace.model_manager.backends.server.engine import load
from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.engine.interface import LoadInterrupted
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import EngineLost, InvalidRequest, ModelLoadFailed, ServerFailed
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.server_presets import PRESETS
from tests.model_manager.backends.stand_in_main import runs
from tests.model_manager.backends.stand_in_server import text_for
from tests.model_manager.manager.machine import PATIENCE, SETTINGS, Machine, kill, machine
from tests.servers.processes import free_port
from tests.waiting import eventually

__all__ = ["machine"]

ROOT = Path(__file__).parents[3]
SHELL = f"""sh -c 'PYTHONPATH="$PYTHONPATH:{ROOT}" exec "$@"' sh"""


def program(folder: Path) -> str:
    """The command of the stand-in server."""
    return f"{SHELL} {sys.executable} -m tests.model_manager.backends.stand_in_main {{port}} {folder}"


def opened(machine: Machine, folder: Path, settings: ManagerConfig = SETTINGS, **options: Any) -> EngineClient:
    options = {"command": program(folder)} | options
    return machine.open(settings, MANAGER_COMMAND, model="m", backend="server", backend_options=options)


def expect_answers(client: EngineClient, prompts: list[str]) -> None:
    futures = {prompt: client.submit(prompt, SamplingParams(), request_id=prompt) for prompt in prompts}
    assert {name: future.result(PATIENCE).text for name, future in futures.items()} == {
        prompt: text_for(prompt) for prompt in prompts
    }


def pids(folder: Path) -> list[int]:
    """Process ids of the server that was started last, and of its child."""
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def environment(folder: Path) -> dict[str, str]:
    """The variables of the server that was started last."""
    found: dict[str, str] = json.loads((folder / "environment").read_text())
    return found


def left(folder: Path) -> Path:
    """A temporary file of the server that was started last."""
    return Path((folder / "left").read_text())


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


def expect_gone(*gone: int) -> None:
    eventually(lambda: not any(runs(pid) for pid in gone), "the end of the server's processes")


def test_a_server_is_started_for_the_job_and_ended_with_it(machine: Machine, tmp_path: Path) -> None:
    client = opened(machine, tmp_path)
    expect_answers(client, [f"row {index}" for index in range(100)])
    server, child = pids(tmp_path)
    assert environment(tmp_path)["PYTHONPATH"] == f":{ROOT}"  # nothing of our Python's: the server may be another's
    assert runs(server)
    assert runs(child)
    assert left(tmp_path).exists()
    client.close()
    expect_gone(server, child)
    eventually(lambda: not left(tmp_path).parent.exists(), "the end of its temporary files")
    assert starts(tmp_path) == 1


def test_a_vllm_server_binds_no_thread_to_a_core_unless_the_environment_says_so(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with opened(machine, tmp_path, preset="vllm"):
        found = environment(tmp_path)
    assert (found["VLLM_CPU_OMP_THREADS_BIND"], found["OMP_WAIT_POLICY"]) == ("nobind", "ACTIVE")
    assert int(found["OMP_NUM_THREADS"]) >= 1


@pytest.mark.parametrize("fault", ["die", "hang"])
def test_a_server_that_dies_or_hangs_is_started_again_and_no_row_is_lost(
    machine: Machine, tmp_path: Path, fault: str
) -> None:
    options: dict[str, Any] = {"hang_timeout": 4} if fault == "hang" else {}  # it may take another server too for hung
    client = opened(machine, tmp_path, **options)
    expect_answers(client, [*(f"row {index}" for index in range(20)), fault])
    restarts = machine.model_status().restarts
    assert restarts == 1 if fault == "die" else restarts >= 1
    eventually(lambda: starts(tmp_path) == 1 + machine.model_status().restarts, "a start for each restart")
    assert not (tmp_path / "overlap").exists(), "the former server still ran, with all that it holds"


def test_a_server_that_is_unhealthy_and_still_answers_is_started_again_and_no_row_is_lost(
    machine: Machine, tmp_path: Path
) -> None:
    client = opened(machine, tmp_path, unhealthy_timeout=1, retries=0)
    expect_answers(client, [*(f"row {index}" for index in range(20)), "unhealthy"])
    assert machine.model_status().restarts == 1
    assert not (tmp_path / "overlap").exists(), "the former server still ran, with all that it holds"


@pytest.mark.parametrize("fault", ["die", "unhealthy"])
def test_a_server_that_is_asked_over_grpc_is_watched_at_its_http_route(
    machine: Machine, tmp_path: Path, fault: str
) -> None:
    command = f"{program(tmp_path)} {{grpc_port}}"
    client = opened(machine, tmp_path, command=command, unhealthy_timeout=1, retries=0)
    expect_answers(client, [*(f"row {index}" for index in range(20)), fault])
    assert machine.model_status().restarts == 1
    with pytest.raises(InvalidRequest, match="top_k=4: the dialect kserve"):
        client.submit("x", SamplingParams(top_k=4), request_id="refused").result(PATIENCE)


def test_a_server_that_is_unhealthy_for_a_moment_goes_on_and_no_row_is_lost(machine: Machine, tmp_path: Path) -> None:
    client = opened(machine, tmp_path, unhealthy_timeout=60, retries=0)
    expect_answers(client, [*(f"row {index}" for index in range(20)), "unhealthy for 1 s"])
    assert machine.model_status().restarts == 0


def test_a_server_that_answers_rows_goes_on_whatever_its_health_route_says(machine: Machine, tmp_path: Path) -> None:
    client = opened(machine, tmp_path, unhealthy_timeout=2)
    (tmp_path / "overload").touch()
    asks = tmp_path / "unhealthy asks"
    for row in range(10**6):
        expect_answers(client, [f"row {row}"])
        if asks.exists() and len(asks.read_text()) >= 12:  # five of them count, in two seconds
            break
    assert machine.model_status().restarts == 0


def test_a_server_that_is_unhealthy_after_each_start_is_given_up_by_its_health_route(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "always unhealthy").touch()
    client = opened(
        machine, tmp_path, msgspec.structs.replace(SETTINGS, max_restarts=1), unhealthy_timeout=0.5, retries=0
    )
    futures = [client.submit(f"row {index}", SamplingParams(), request_id=str(index)) for index in range(4)]
    said = "m: its inference process died 2 times in a row: .*: the server's /health has answered 503 for 0.5 s "
    for future in futures:
        with pytest.raises(EngineLost, match=said):
            future.result(PATIENCE)
    assert starts(tmp_path) == 2


def test_a_row_that_a_healthy_server_fails_at_fails_alone(machine: Machine, tmp_path: Path) -> None:
    client = opened(machine, tmp_path, retries=1)
    with pytest.raises(ServerFailed, match=r"no answer in 2 tries; the last: .* answered 500: no fault"):
        client.submit("fault", SamplingParams(), request_id="fault").result(PATIENCE)
    expect_answers(client, ["after"])
    assert machine.model_status().restarts == 0


@pytest.mark.parametrize(
    ("moment", "number", "said"),
    [
        ("start", signal.SIGSTOP, r"hangs before it is ready: its process \d+ is stopped for 1 s"),
        ("/health", signal.SIGSTOP, r"hangs before it is ready: its process \d+ is stopped for 1 s"),
        ("/v1/models", signal.SIGSTOP, "/health gives no answer within 1 s"),
        ("start", signal.SIGKILL, "was ended by SIGKILL before it was ready"),
        ("/health", signal.SIGKILL, "was ended by SIGKILL before it was ready"),
        ("/v1/models", signal.SIGKILL, "ended with status 137|gives no answer"),  # its guard may not be done
        ("/v1/models", 503, "the server's /health answers 503"),
    ],
)
def test_a_server_that_is_stopped_killed_or_unhealthy_before_all_is_ready_ends_that_load_alone(
    tmp_path: Path, moment: str, number: int, said: str
) -> None:
    (tmp_path / "strike").write_text(f"{moment} {number}")
    options: dict[str, Any] = {"command": program(tmp_path), "hang_timeout": 1, "connect_timeout": 2, "retries": 0}
    config = ModelConfig(model="m", backend="server", backend_options=options)
    with pytest.raises(LoadInterrupted, match=said):
        load(config, tmp_path)
    expect_gone(*pids(tmp_path))


def test_a_server_that_aborts_as_it_starts_fails_the_load(tmp_path: Path) -> None:
    (tmp_path / "strike").write_text(f"start {signal.SIGABRT}")
    config = ModelConfig(model="m", backend="server", backend_options={"command": program(tmp_path)})
    with pytest.raises(ModelLoadFailed, match="ended with status 134 before it was ready"):
        load(config, tmp_path)
    expect_gone(*pids(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_load_that_was_interrupted_is_begun_again_at_the_first_start_and_at_a_later_one(
    machine: Machine, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "strike").write_text(f"/health {number}")
    client = opened(machine, tmp_path, hang_timeout=4)
    expect_answers(client, ["before"])
    restarts = machine.model_status().restarts
    assert restarts >= 1
    (tmp_path / "strike").write_text(f"/health {number}" if number == signal.SIGKILL else f"start {number}")
    kill(machine.engine_pid())
    expect_answers(client, ["after"])
    assert not (tmp_path / "strike").exists()
    assert machine.model_status().restarts >= restarts + 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_inference_process_that_is_killed_takes_its_server_with_it(
    machine: Machine, tmp_path: Path, number: signal.Signals
) -> None:
    client = opened(machine, tmp_path)
    expect_answers(client, ["before"])
    before, file = pids(tmp_path), left(tmp_path)
    kill(machine.engine_pid(), number)
    expect_gone(*before)
    eventually(lambda: not file.parent.exists(), "the end of its temporary files")
    expect_answers(client, ["after"])
    assert starts(tmp_path) == 2


def test_a_server_at_a_port_of_its_own_starts_once_all_of_the_former_one_has_ended(
    machine: Machine, tmp_path: Path
) -> None:
    """Its child keeps what it holds, other ports say, for the guard's grace after the server itself has ended."""
    client = opened(machine, tmp_path, port=free_port())
    expect_answers(client, ["before"])
    kill(machine.engine_pid())
    expect_answers(client, ["after"])
    assert starts(tmp_path) == 2
    assert not (tmp_path / "overlap").exists()


def test_a_guard_that_is_killed_leaves_no_server(machine: Machine, tmp_path: Path) -> None:
    client = opened(machine, tmp_path)
    expect_answers(client, ["before"])
    (server, child), file = pids(tmp_path), left(tmp_path)
    guard = psutil.Process(server).ppid()
    kill(guard)
    expect_gone(server, guard)
    eventually(lambda: not file.parent.exists(), "the end of its temporary files")
    kill(child)  # it is in a session of its own, so only its guard could have found it
    expect_answers(client, ["after"])
    assert starts(tmp_path) == 2


def test_a_server_that_does_not_start_fails_the_job_with_its_last_line(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    with pytest.raises(ModelLoadFailed) as failed:
        opened(machine, tmp_path)
    assert str(failed.value) == "the server ended with status 1 before it was ready: no such model: it was refused"


def test_a_program_that_there_is_not_is_named(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="trtllm-serve: No such file or directory"):
        opened(machine, tmp_path, command="trtllm-serve {model} --port {port}")


def test_a_wrong_health_route_is_named(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="answers 404 at /alive: the option health names its route"):
        opened(machine, tmp_path, health="/alive")
    expect_gone(*pids(tmp_path))


def test_a_server_that_listens_elsewhere_is_given_up_with_the_port_that_is_asked(
    machine: Machine, tmp_path: Path
) -> None:
    port, other = free_port(), free_port()
    command = program(tmp_path).replace("{port}", str(other))
    settings = msgspec.structs.replace(SETTINGS, load_timeout=8.0)
    lacks = f"waiting for the server: 127.0.0.1:{port} gives no answer: the connection is refused"
    with pytest.raises(ModelLoadFailed, match=rf"load_timeout = 8 s: .*{re.escape(lacks)}"):
        opened(machine, tmp_path, settings, command=command, port=port)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("c.sendall(b'SSH-2.0-OpenSSH_9.0\\r\\n')", "what it sends is not HTTP"),
        ("c.setsockopt(1, 13, struct.pack('ii', 1, 0))", "Connection reset by peer"),
    ],
    ids=["SSH", "resets"],
)
def test_a_server_that_speaks_no_http_is_given_up_with_what_it_does(
    machine: Machine, tmp_path: Path, does: str, said: str
) -> None:
    file = tmp_path / "no_http.py"
    listens = "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))"
    file.write_text(f"import socket, struct, sys\n{listens}\nwhile True:\n    c = s.accept()[0]; {does}; c.close()\n")
    settings = msgspec.structs.replace(SETTINGS, load_timeout=8.0)
    with pytest.raises(ModelLoadFailed, match=rf"load_timeout = 8 s: .* gives no answer: {said}"):
        opened(machine, tmp_path, settings, command=f"{sys.executable} {file} {{port}}")


def test_the_health_route_gets_the_key_too(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_KEY", "k-1234-ключ")
    expect_answers(
        opened(machine, tmp_path, key_env="STAND_IN_KEY", unhealthy_timeout=0.5, retries=0), ["row", "unhealthy"]
    )
    assert machine.model_status().restarts == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "answers 401 at /health: the option key_env names the key that it takes, or the option health"),
        (307, "answers 307 at /health: the option health names its route"),
    ],
)
def test_a_health_route_that_never_gets_good_is_named_at_once(tmp_path: Path, status: int, said: str) -> None:
    (tmp_path / "strike").write_text(f"/health {status}")
    config = ModelConfig(model="m", backend="server", backend_options={"command": program(tmp_path)})
    with pytest.raises(ModelLoadFailed, match=said):
        load(config, tmp_path)
    expect_gone(*pids(tmp_path))


PIPELINES = '''
class Pipe:
    """Repeats the prompt's words, and ends after `end`; shows what it was asked."""

    def tokenizer(self, text, add_special_tokens):
        return {"input_ids": text.split()}

    def __call__(self, prompt, max_new_tokens, **chosen):
        words = [*prompt.split(), "end"]
        if "shown" in words:
            words = [f"{name}={value}" for name, value in sorted(chosen.items())]
        return [{"generated_text": [prompt + "".join(f" {word}" for word in words[:max_new_tokens])]}]


def pipeline(task, model):
    assert (task, model) == ("text-generation", "m")
    return Pipe()
'''


def test_the_small_server_of_optimum_nvidia_answers_over_its_pipeline(machine: Machine, tmp_path: Path) -> None:
    """The pipeline is a stand-in: the library needs a GPU."""
    package = tmp_path / "optimum" / "nvidia"
    package.mkdir(parents=True)
    (package / "pipelines.py").write_text(PIPELINES)
    python = f"""sh -c 'PYTHONPATH={tmp_path} exec "$@"' sh {sys.executable}"""
    command = PRESETS["optimum-nvidia"].command.replace("python", python, 1)
    with opened(machine, tmp_path, command=command, preset="optimum-nvidia") as client:
        rows: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
            ("one two three", {"max_tokens": 2}, (" one two", "length")),
            ("one two three", {}, (" one two three end", "stop")),
            ("one two three", {"stop": ["three", "two"]}, (" one ", "stop")),
            ("shown", {}, (" top_k=1", "stop")),
            ("shown", {"temperature": 0.5, "seed": 3}, (" seed=3 temperature=0.5 top_k=0 top_p=1.0", "stop")),
        ]
        asked = [
            client.submit(prompt, SamplingParams.parse(params), request_id=str(number))
            for number, (prompt, params, _) in enumerate(rows)
        ]
        found = [future.result(PATIENCE) for future in asked]
        assert [(each.text, each.finish_reason.value) for each in found] == [row[2] for row in rows]
        with pytest.raises(InvalidRequest, match="presence_penalty: Optimum-NVIDIA's pipeline does not take it"):
            client.submit("x", SamplingParams(presence_penalty=1.0), request_id="refused").result(PATIENCE)

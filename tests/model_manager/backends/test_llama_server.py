"""llama.cpp's own HTTP server, as one that millrace starts and as a remote one: its greedy answers are our engine's."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import ConstraintNotMet, InvalidRequest
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import asked, drained, engine_for, text
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.real_servers import (
    PATIENCE,
    PROGRAMS,
    Family,
    expect_the_job_to_fail,
    family,
    kill,
    main_process,
    python_of,
    remote,
)
from tests.model_manager.backends.scenarios import CAPITALS, SCHEMA, SUMS
from tests.model_manager.manager.machine import Machine, machine
from tests.model_manager.store.checkpoints import EMBEDDED
from tests.servers.processes import free_port
from tests.waiting import eventually

__all__ = ["family", "machine"]

pytestmark = pytest.mark.engines

PROGRAM = str(PROGRAMS / "llama.py")
DIFFER = 1
"""Most rows of 32 whose text may differ from ours: rounding decides between two tokens."""
END = json.loads((EMBEDDED / "config.json").read_bytes())["eos_token_id"]
STOPPED: dict[str, Any] = {"stop": ("la", "idr"), "max_tokens": 30, "logit_bias": {END: -100}}
"""In the answer "Madridrid" the second one begins in one token and ends in the next."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("models") / "tiny-f32.gguf")


def opened(machine: Machine, model: Path, dialect: str) -> EngineClient:
    """A client of a server that millrace starts."""
    command = shlex.join([*python_of("llama_cpp"), PROGRAM, "{model}", "{port}"])
    options = {"preset": "llama-server", "command": command, "dialect": dialect}
    patient = ManagerConfig(linger=0.1, orphan_grace=0.5)  # on a busy machine a step takes seconds
    return machine.open(patient, MANAGER_COMMAND, model=str(model), backend="server", backend_options=options)


@dataclass(frozen=True)
class Answers:
    """Answers of one server, or of our engine."""

    greedy: list[Output]
    """Answers of 1 to 24 tokens at most."""
    stopped: list[Output]
    """Up to a stop string, if one comes."""


def answers_of(client: EngineClient, *, chats: bool) -> Answers:
    """All are asked for at once."""
    limits = [SamplingParams(max_tokens=1 + index % 24) for index in range(len(CAPITALS + SUMS))]
    pairs = [*zip(CAPITALS + SUMS, limits, strict=True), *((each, SamplingParams(**STOPPED)) for each in CAPITALS)]
    futures = []
    for number, (prompt, params) in enumerate(pairs):
        said: Any = [{"role": "user", "content": prompt}] if chats else prompt
        futures.append(client.submit(said, params, request_id=f"{number}{' as a chat' * chats}"))
    found = [future.result(PATIENCE) for future in futures]
    return Answers(found[: len(limits)], found[len(limits) :])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Answers]:
    """Our engine's answers, by whether they are chats'."""
    config = ModelConfig(model=EMBEDDED_MODEL, dtype="float32", num_threads=1)
    runtime = tmp_path_factory.mktemp("ours") / "run"
    with EngineClient.open(config, manager=ManagerConfig(linger=0), runtime=runtime, chat=False) as ours:
        return {chats: answers_of(ours, chats=chats) for chats in (False, True)}


def expect_as_stopped(found: list[Output], expected: list[Output]) -> None:
    """Texts end before the stop string, and some do."""
    assert [(each.text, each.finish_reason) for each in found] == [(each.text, each.finish_reason) for each in expected]
    assert not [each.text for each in found if any(stop in each.text for stop in STOPPED["stop"])]
    assert {each.stop_reason for each in expected} >= {*STOPPED["stop"]}, "no answer came to it"


def expect_constraints(client: EngineClient, dialect: str) -> None:
    """Constraints that the dialect names are held, others are refused."""

    def answer(**params: Any) -> Any:
        asked = SamplingParams.parse({"max_tokens": 80, "temperature": 1.0, "seed": 5} | params)
        return json.loads(client.submit(CAPITALS[0], asked, request_id=str(params)).result(PATIENCE).text)

    schema: dict[str, Any] = {"constraint": {"json_schema": SCHEMA}}
    takes = "json, json_schema" if dialect == "openai" else "no constraint"
    with pytest.raises(InvalidRequest, match=f"constraint: the dialect {dialect} takes {takes}, got regex"):
        answer(constraint={"regex": "[0-9]+"})
    if dialect != "openai":
        with pytest.raises(InvalidRequest, match=f"constraint: the dialect {dialect} takes {takes}, got json_schema"):
            answer(**schema)
        return
    for seed in range(4):
        found = answer(**schema, seed=seed)
        assert found.keys() == {"n", "ok"}
        assert (type(found["n"]), type(found["ok"])) == (int, bool)
        assert 0 <= found["n"] <= 99
    assert isinstance(answer(constraint={"json": True}), dict)
    with pytest.raises(ConstraintNotMet, match="the output is not complete after 3 tokens, and max_tokens=3 allows no"):
        answer(**schema, max_tokens=3)


@pytest.mark.parametrize("dialect", ["openai", "openai-completions", "llama-completion"])
def test_greedy_answers_are_those_of_our_engine_and_rows_have_their_own_parameters(
    family: Family, machine: Machine, model: Path, expected: dict[bool, Answers], dialect: str
) -> None:
    chats = dialect == "openai"
    client = opened(machine, model, dialect)
    ours, theirs = expected[chats], answers_of(client, chats=chats)
    expect_as_stopped(theirs.stopped, ours.stopped)
    found = theirs.greedy
    assert sum(one.text != other.text for one, other in zip(found, ours.greedy, strict=True)) <= DIFFER
    assert [each.prompt_tokens for each in found] == [each.prompt_tokens for each in ours.greedy]
    assert all(each.num_generated <= 1 + index % 24 for index, each in enumerate(found))

    hot: dict[str, Any] = {"temperature": 20.0, "seed": 3, "max_tokens": 12, "logit_bias": {END: -100}}
    cold, once, twice, cut = (
        client.submit(CAPITALS[0], SamplingParams(**params), request_id=name).result(PATIENCE)
        for name, params in {
            "cold": hot | {"temperature": 0.0},
            "once": hot,
            "twice": hot,
            "cut": hot | {"top_k": 1},
        }.items()
    )
    assert cold.text == cut.text != once.text == twice.text
    assert cold.finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidRequest, match="presence_penalty=9"):
        client.submit(CAPITALS[0], SamplingParams(presence_penalty=9.0), request_id="refused").result(PATIENCE)
    with pytest.raises(InvalidRequest, match="min_tokens=2: the dialect"):
        client.submit(CAPITALS[0], SamplingParams(min_tokens=2), request_id="lacks").result(PATIENCE)
    with pytest.raises(InvalidRequest, match=r"answered 400: request \(\d+ tokens\) exceeds the available context"):
        client.submit("word " * 3000, SamplingParams(), request_id="long").result(PATIENCE)
    expect_constraints(client, dialect)
    client.close()
    eventually(lambda: not family.left(), "the end of the server")


@pytest.mark.parametrize(("dialect", "goes_on"), [("openai-completions", False), ("llama-completion", True)])
def test_a_server_of_ours_that_is_killed_in_mid_job_is_started_again(
    family: Family, machine: Machine, model: Path, dialect: str, goes_on: bool
) -> None:
    """Answers differ in length: when the first one ends, those beside it have tokens, and more to come."""
    client = opened(machine, model, dialect)
    lengths = {f"{prompt} {number}": 60 + 80 * number for prompt in CAPITALS for number in range(4)}

    def submitted(name: str) -> list[Future[Output]]:
        params = [SamplingParams(max_tokens=length, logit_bias={END: -100}) for length in lengths.values()]
        pairs = zip(lengths, params, strict=True)
        return [client.submit(prompt, each, request_id=f"{name} {prompt}") for prompt, each in pairs]

    def disturbed(name: str) -> int:
        """The most tokens that an answer had which the server's death cut."""
        server = main_process(family, PROGRAM)
        futures = submitted(name)
        wait(futures, PATIENCE, FIRST_COMPLETED)
        kill(server)
        found = [future.result(PATIENCE) for future in futures]
        assert [each.num_generated for each in found] == [*lengths.values()]
        assert [each.prompt_tokens for each in found] == [each.prompt_tokens for each in whole]
        assert sum(one.text != other.text for one, other in zip(found, whole, strict=True)) <= DIFFER
        return max((each.recomputed_tokens for each in found if each.setbacks), default=0)

    whole = [future.result(PATIENCE) for future in submitted("whole")]
    deaths, most = 1, disturbed("disturbed 1")
    while goes_on and most <= 40 and deaths < 5:  # on a busy machine the server may be far ahead of its kill
        deaths += 1
        most = disturbed(f"disturbed {deaths}")
    assert machine.model_status().restarts == deaths
    assert (most > 40) is goes_on, "the first one that ended had 60 tokens, and those beside it about as many"


def test_a_remote_server_that_dies_is_waited_for_and_one_that_stays_away_ends_the_job(
    family: Family, model: Path, tmp_path: Path
) -> None:
    port, bias = str(free_port()), {END: -100}
    command, url = [*python_of("llama_cpp"), PROGRAM, str(model), port], f"http://127.0.0.1:{port}"
    options: dict[str, Any] = {"dialect": "openai-completions", "max_connections": 4, "retries": 1}
    with remote(command, f"{url}/health", tmp_path / "log"):
        with engine_for(url, down_timeout=PATIENCE, **options) as engine:
            for number in range(40):
                engine.add(asked(f"Row {number}", max_tokens=150, logit_bias=bias))
            early = len(engine.step().outputs)
            while not early:
                early = len(engine.step().outputs)
            family.kill()
            with remote(command, f"{url}/health", tmp_path / "log"):
                found = drained(engine)
                family.kill()
        assert early + len(found) == 40
        assert all(text(each) for each in found.values())
        with (
            remote(command, f"{url}/health", tmp_path / "log"),
            engine_for(url, down_timeout=1, **options) as engine,
        ):
            family.kill()
            engine.add(asked("in vain"))
            expect_the_job_to_fail(engine)

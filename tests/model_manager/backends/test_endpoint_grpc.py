"""The back end `endpoint` over gRPC against real servers: the promises of HTTP hold."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.backends.endpoint import over_grpc, sending
from millrace.model_manager.client.election import MANAGER_COMMAND
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, ModelError, ModelLoadFailed, ModelNotFound
from millrace.model_manager.wire.request import Failure, FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.endpoint_engines import answers, asked, drained, ended, engine_for, refusal, text
from tests.model_manager.backends.stand_in_grpc import GrpcServers, grpc_serving
from tests.model_manager.backends.stand_in_server import text_for
from tests.model_manager.manager.machine import PATIENCE, Machine, kill, machine
from tests.waiting import eventually

__all__ = ["machine"]

KEY = "sk-the-secret-key"
PASSES = [
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "INTERNAL",
    "UNKNOWN",
    "CANCELLED",
    "RESOURCE_EXHAUSTED",
    "NOT_FOUND",
]
BROKEN = ["empty", "cut", "binary", "no text"]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once; how long waits are is tested where they are computed."""
    monkeypatch.setattr(sending, "backoff", lambda _failures, **_least: 0.0)


@pytest.fixture
def servers() -> Iterator[GrpcServers]:
    with grpc_serving() as found:
        yield found


def test_every_row_gets_its_own_answer_and_work_is_balanced(servers: GrpcServers) -> None:
    """No answer comes before all connections have a request: one without would hold all up."""
    all_connections = threading.Barrier(2 * 3, timeout=60)

    def behaves(_prompt: str, _tries: int) -> None:
        all_connections.wait()

    both = [servers.start(behaves), servers.start(behaves)]
    with engine_for(*(server.url for server in both), dialect="kserve", max_connections=3) as engine:
        prompts = [f"row {index} é" for index in range(2 * 3 * 33)]
        assert {key: text(each) for key, each in answers(engine, prompts).items()} == {
            prompt: text_for(prompt) for prompt in prompts
        }
    assert [len(server.seen) for server in both] == [3 * 33, 3 * 33]
    assert [server.most_in_flight for server in both] == [3, 3]


def test_a_rows_parameters_go_to_the_models_inputs(servers: GrpcServers) -> None:
    server = servers.start(lambda _prompt, _tries: "in contents")
    with engine_for(server.url, dialect="kserve") as engine:
        engine.add(asked("a", max_tokens=7, temperature=0.5, seed=2**40, stop=("x", "é")))
        assert text(drained(engine)["a"]) == "<a>"
        with pytest.raises(InvalidRequest, match="top_k=5: the dialect kserve with the inputs of m does not take it"):
            engine.add(asked("b", top_k=5))  # its input takes two-byte floats, which the protocol cannot carry
    assert server.seen == [
        {
            "text_input": [b"a"],
            "max_tokens": [7],
            "temperature": [0.5],
            "random_seed": [2**40],
            "stop_words": [b"x", "é".encode()],
        }
    ]


def test_a_value_that_an_input_cannot_hold_is_that_rows_failure(servers: GrpcServers) -> None:
    with engine_for(servers.start().url, dialect="kserve") as engine:
        engine.add(asked("bad", max_tokens=2**31))
        engine.add(asked("good"))
        found = drained(engine)
    kind, message = refusal(found["bad"])
    assert (kind, message.partition(": ")[0]) == ("InvalidRequest", "max_tokens")
    assert text(found["good"]) == "<good>"


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"])
def test_a_row_that_a_server_refuses_is_that_rows_failure(servers: GrpcServers, status: str) -> None:
    server = servers.start(lambda prompt, _tries: status if prompt == "bad" else None)
    with engine_for(server.url, dialect="kserve") as engine:
        found = answers(engine, ["good", "bad"])
    assert text(found["good"]) == "<good>"
    assert refusal(found["bad"]) == ("InvalidRequest", f"{server.url} answered {status}: no bad")
    assert server.tries == {"good": 1, "bad": 1}


@pytest.mark.parametrize("fault", PASSES + BROKEN)
def test_a_fault_that_passes_is_tried_again(servers: GrpcServers, fault: str) -> None:
    server = servers.start(lambda _prompt, tries: fault if tries == 1 else None)
    with engine_for(server.url, dialect="kserve") as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert server.tries == {"a": 2}


@pytest.mark.parametrize("fault", ["INTERNAL", "empty"])
def test_a_row_at_which_a_living_server_fails_each_time_fails_alone(servers: GrpcServers, fault: str) -> None:
    server = servers.start(lambda prompt, _tries: fault if prompt == "poison" else None)
    with engine_for(server.url, dialect="kserve", retries=2) as engine:
        found = answers(engine, ["poison", *map(str, range(20))])
    assert {text(each) for key, each in found.items() if key != "poison"} == {text_for(str(n)) for n in range(20)}
    assert refusal(found["poison"])[1].partition(";")[0] == "no answer in 3 tries"
    assert server.tries["poison"] == 3


@pytest.mark.parametrize("metadata", [(), (("grpc-retry-pushback-ms", "1"),), (("retry-after", "0"),)])
def test_a_busy_server_is_waited_for_however_often_it_says_so(servers: GrpcServers, metadata: tuple[Any, ...]) -> None:
    server = servers.start(lambda _prompt, tries: ("RESOURCE_EXHAUSTED", metadata) if tries <= 20 else None)
    with engine_for(server.url, dialect="kserve", retries=1) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"
    assert server.tries == {"a": 21}


def test_a_message_that_is_too_large_is_that_rows_failure(
    servers: GrpcServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_grpc, "MOST_BYTES", 500)
    server = servers.start(lambda prompt, _tries: "large" if prompt == "large answer" else None)
    with engine_for(server.url, dialect="kserve") as engine:
        found = answers(engine, ["large answer", "large prompt" * 2**20, "good"])
    assert text(found.pop("good")) == "<good>"
    assert {refusal(each)[0] for each in found.values()} == {"InvalidRequest"}
    assert all("larger than max" in refusal(each)[1] for each in found.values())


def test_a_server_that_does_not_answer_in_time_fails_the_row_alone(servers: GrpcServers) -> None:
    server = servers.start(lambda prompt, _tries: "wait" if prompt == "slow" else None)
    with engine_for(server.url, dialect="kserve", timeout=0.2, retries=1) as engine:
        for _ in range(20):  # on a busy machine the other answer may come too late as well
            found = answers(engine, ["slow", "fast"])
            assert "DEADLINE_EXCEEDED" in refusal(found["slow"])[1]
            if isinstance(found["fast"], Output):
                break
        server.release.set()
    assert text(found["fast"]) == "<fast>"


def test_a_deadline_and_an_abort_end_a_request_that_its_server_holds(servers: GrpcServers) -> None:
    server = servers.start(lambda _prompt, _tries: "wait")
    with engine_for(server.url, dialect="kserve") as engine:
        engine.add(asked("unwanted"))
        while not server.in_flight:
            engine.step()
        engine.abort("unwanted")
        engine.add(asked("late", deadline=0.1))
        found = drained(engine)
        server.release.set()
    assert refusal(found["late"]) == ("DeadlineExceeded", "no token after deadline=0.1 seconds")
    assert isinstance(found["unwanted"], Output)
    assert found["unwanted"].finish_reason is FinishReason.ABORT


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("UNAUTHENTICATED", ModelLoadFailed, "it refuses a request without a key"),
        ("PERMISSION_DENIED", ModelLoadFailed, "it refuses a request without a key"),
        ("UNIMPLEMENTED", ModelNotFound, "check the options urls and dialect"),
    ],
)
def test_a_refusal_of_everything_raises_out_of_the_step(
    servers: GrpcServers, status: str, kind: type[ModelError], said: str
) -> None:
    server = servers.start(lambda _prompt, _tries: status)
    with engine_for(server.url, dialect="kserve") as engine:
        engine.add(asked("a"))
        with pytest.raises(kind, match=f"answered {status}: no a; {said}"):
            drained(engine)


def test_the_key_is_sent_in_metadata_and_shown_nowhere(servers: GrpcServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server = servers.start(lambda _prompt, _tries: "INVALID_ARGUMENT", key=KEY)
    with engine_for(server.url, dialect="kserve", key_env="MY_KEY") as engine:
        assert refusal(answers(engine, [KEY])[KEY]) == (
            "InvalidRequest",
            f"{server.url} answered INVALID_ARGUMENT: no ***",
        )
    other = servers.start(key="another")
    with pytest.raises(ModelLoadFailed) as failed, engine_for(other.url, dialect="kserve", key_env="MY_KEY"):
        pass
    assert str(failed.value) == (
        f"{other.url} answered UNAUTHENTICATED: Incorrect API key provided: Bearer ***; it refuses the key in MY_KEY"
    )


def test_a_model_that_there_is_not_or_that_is_not_ready_ends_the_load(servers: GrpcServers) -> None:
    with (
        pytest.raises(ModelNotFound, match="NOT_FOUND: Request for unknown model: 'n' is not found"),
        engine_for(servers.start().url, dialect="kserve", model="n"),
    ):
        pass
    with (
        pytest.raises(ModelLoadFailed, match=r"no server lives: .*: the model m is not ready"),
        engine_for(servers.start(is_ready=False).url, dialect="kserve", retries=0),
    ):
        pass


def test_an_address_without_a_server_and_one_that_does_not_speak_end_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            url = f"grpc://127.0.0.1:{port}"
            with (
                pytest.raises(ModelLoadFailed, match=f"no server lives: {url} answered"),
                engine_for(url, dialect="kserve", retries=0, connect_timeout=0.2),
            ):
                pass


def test_servers_that_answer_nothing_for_long_end_the_job_and_no_row(servers: GrpcServers) -> None:
    server = servers.start()
    with engine_for(server.url, dialect="kserve", down_timeout=0.05) as engine:
        servers.stop(server)
        for index in range(10):
            engine.add(asked(str(index)))
        with pytest.raises(ModelLoadFailed, match="no server has answered a request for"):
            drained(engine)


def test_one_of_two_servers_dies_and_the_other_gets_its_requests(servers: GrpcServers) -> None:
    first, second = servers.start(), servers.start()
    with engine_for(first.url, second.url, dialect="kserve", max_num_seqs=8, retries=0) as engine:
        prompts = [f"row {index}" for index in range(400)]
        for prompt in prompts:
            engine.add(asked(prompt))
        found: dict[str, Output | Failure] = {}
        while engine.has_work():
            found |= {each.request_id: each for each in ended(engine.step())}
            if len(found) > 50 and first.url in servers.urls:
                servers.stop(first)
        assert {key: text(each) for key, each in found.items()} == {prompt: text_for(prompt) for prompt in prompts}
    assert 0 < len(first.seen) < 400


def test_tls_trusts_whom_https_trusts(servers: GrpcServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = self_signed("localhost")
    server = servers.start(credentials=grpc.ssl_server_credentials([(key, certificate)]), key=KEY)
    monkeypatch.setenv("MY_KEY", KEY)
    options: dict[str, Any] = {"dialect": "kserve", "key_env": "MY_KEY", "retries": 0}
    with pytest.raises(ModelLoadFailed, match="no server lives: grpcs://"), engine_for(server.url, **options):
        pass
    (tmp_path / "roots.pem").write_bytes(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    with engine_for(server.url, **options) as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def self_signed(host: str) -> tuple[bytes, bytes]:
    """A key and a certificate of this host, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, serialization.NoEncryption()), certificate.public_bytes(pem)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "grpc://a:1"}, "dialect='openai': takes kserve with grpc:// URLs"),
        ({"urls": "grpc://a", "dialect": "kserve"}, "urls='grpc://a': takes grpc://HOST:PORT"),
        ({"urls": "grpcs://a:1/path", "dialect": "kserve"}, "urls='grpcs://a:1/path': takes grpcs://HOST:PORT"),
        ({"urls": "grpc://a:1,http://b", "dialect": "kserve"}, "takes URLs of HTTP or of gRPC, not both"),
    ],
)
def test_urls_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    urls = options.pop("urls")
    with pytest.raises(ConfigError) as refused, engine_for(urls, **options):
        pass
    assert said in str(refused.value)


@given(st.data())
@settings(max_examples=10)
def test_every_request_ends_once_whatever_servers_do(data: st.DataObject) -> None:
    faults = st.sampled_from([*PASSES, *BROKEN, "INVALID_ARGUMENT", "in contents"])
    plans = data.draw(st.lists(st.lists(faults, max_size=4), min_size=1, max_size=40))
    aborted = data.draw(st.sets(st.integers(0, len(plans) - 1)))

    def behaves(prompt: str, tries: int) -> Any:
        plan = plans[int(prompt)]
        return plan[tries - 1] if tries <= len(plan) else None

    with grpc_serving() as servers:
        fleet = [servers.start(behaves) for _ in range(data.draw(st.integers(1, 2)))]
        urls = [server.url for server in fleet]
        with engine_for(*urls, dialect="kserve", max_num_seqs=8, retries=10) as engine:
            for index in range(len(plans)):
                engine.add(asked(str(index)))
                if index in aborted:
                    engine.abort(str(index))
            found = drained(engine)
    assert set(found) == {str(index) for index in range(len(plans))}
    for key, each in found.items():
        if isinstance(each, Output) and each.finish_reason is not FinishReason.ABORT:
            assert each.text == text_for(key)
        elif isinstance(each, Failure):
            assert each.error.kind == "InvalidRequest"


def test_requests_of_an_inference_process_that_is_killed_are_sent_again(machine: Machine, servers: GrpcServers) -> None:
    held = {str(index) for index in range(8)}
    server = servers.start(lambda prompt, tries: "wait" if prompt in held and tries == 1 else None)
    options = {"urls": server.url, "dialect": "kserve"}
    client = machine.open(
        command=MANAGER_COMMAND, model="m", backend="endpoint", backend_options=options, max_num_seqs=16
    )
    futures = {str(index): client.submit(str(index), SamplingParams(), request_id=str(index)) for index in range(40)}
    answered = len(futures) - len(held)
    eventually(
        lambda: server.in_flight == len(held) and sum(each.done() for each in futures.values()) == answered,
        "all but those that are held",
    )
    kill(machine.engine_pid())
    found = {name: future.result(PATIENCE) for name, future in futures.items()}
    assert {name: output.text for name, output in found.items()} == {name: text_for(name) for name in futures}
    assert {prompt for prompt, tries in server.tries.items() if tries > 1} == held
    assert machine.model_status().restarts == 1
    server.release.set()

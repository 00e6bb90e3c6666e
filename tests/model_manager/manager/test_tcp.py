"""A manager at a TCP address: who gets in, and what becomes of requests when the way to it is cut or changed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from millrace.model_manager.client import remote
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.observing import ask
from millrace.model_manager.client.status import read_status, stop_models
from millrace.model_manager.manager.finding import check_no_commands, found_model
from millrace.model_manager.store import resolve
from millrace.model_manager.store.locating import tokenizer_digest
from millrace.model_manager.wire.address import TcpAddress
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import (
    ConfigError,
    ErrorInfo,
    InvalidRequest,
    ManagerUnavailable,
    ModelNotFound,
)
from millrace.model_manager.wire.manager_key import client_context, make_key
from millrace.model_manager.wire.manager_place import ManagerPlace, manager_place
from millrace.model_manager.wire.messages import (
    PROTOCOL,
    Cancel,
    ClientMessage,
    FindAdapter,
    GetStatus,
    Hello,
    ManagerToClient,
    Message,
    ModelFailed,
    ModelReady,
    OpenModel,
    Results,
    Status,
    Submit,
)
from millrace.model_manager.wire.request import Adapter, Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.tcp import TcpManager, listening
from millrace.model_manager.wire.transport import MAX_FRAME_BYTES, Connection, ConnectionLost, encode
from tests.leased_files import leased
from tests.model_manager.manager.hostile_way import HostileWay
from tests.model_manager.manager.machine import HASTY, PATIENCE, SETTINGS
from tests.model_manager.manager.stand_in_engine import ANSWER, answer
from tests.model_manager.manager.staying_manager import StayingManager
from tests.waiting import eventually

T = TypeVar("T", ModelReady, Results)
Answer = TypeVar("Answer", bound=Message)
Told = TypeVar("Told")
TOKENS = 20
PARAMS, LONG = SamplingParams(max_tokens=TOKENS), SamplingParams(max_tokens=3000)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "manager.pem"
    make_key(path)
    return path


@pytest.fixture(scope="module")
def manager(key: Path) -> Iterator[StayingManager]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
        with StayingManager(key) as manager:
            yield manager


def opened(settings: ManagerConfig, **model: object) -> EngineClient:
    config = ModelConfig.parse({"backend": "fake", "max_num_seqs": 8} | model)
    return EngineClient.open(config, manager=settings, job="job", chat=False)


def prompt(index: int) -> list[int]:
    return [ANSWER, TOKENS, index]


def submit(client: EngineClient, count: int, name: str) -> dict[int, Future[Output]]:
    return {index: client.submit(prompt(index), PARAMS, request_id=f"{name} {index}") for index in range(count)}


def expect_whole(futures: dict[int, Future[Output]]) -> None:
    for index, future in futures.items():
        assert future.result(PATIENCE).token_ids == answer(prompt(index), TOKENS)


def told(place: ManagerPlace, question: Message, kind: type[Answer]) -> Answer:
    """What the manager answers, however long it takes; both sides give a handshake a few seconds."""
    return patiently(lambda: ask(place, question, kind, within=PATIENCE))


def patiently(look: Callable[[], Told | None]) -> Told:
    """What is told, once a manager answers."""

    def again() -> Told | None:
        with contextlib.suppress(ManagerUnavailable):
            return look()
        return None

    found: Told = eventually(again, "an answer")
    return found


def status(manager: StayingManager) -> Status:
    return told(manager_place(manager.settings()), GetStatus(), Status)


def finished(manager: StayingManager) -> int:
    return sum(job.finished for job in status(manager).jobs)


def closed(sock: socket.socket) -> bool:
    """Whether the other side ends the connection; what it says before is ignored."""
    with sock, contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


def test_whatever_is_done_to_the_way_no_row_is_wrong_and_none_is_lost(manager: StayingManager) -> None:
    with HostileWay(manager.address.port) as way, opened(hasty(manager, way)) as client:
        harms: list[Callable[[], object]] = [
            way.cut,
            partial(way.change, "from"),
            partial(way.change, "to"),
            way.passes.clear,
        ]
        for number, harm in enumerate(harms):
            long = client.submit([ANSWER, 3000], LONG, request_id=f"long {number}")  # something is always outstanding
            futures = submit(client, 12, str(number))
            futures[0].result(PATIENCE)
            connections = len(way.sent)
            harm()
            eventually(lambda before=connections: len(way.sent) > before, "another connection")  # type: ignore[misc]
            way.passes.set()
            expect_whole(futures)
            eventually(lambda: way.has_changed, "the change")
            assert long.cancel()
        recorded, before = [bytes(sent) for sent in way.sent], finished(manager)
    for sent in recorded:
        with contextlib.closing(connected(manager)) as sock:
            sock.sendall(sent)
            assert closed(sock)
    assert finished(manager) == before, "what was recorded is no request a second time"


def hasty(manager: StayingManager, way: HostileWay) -> ManagerConfig:
    """A client that soon takes a way for dead on which nothing comes."""
    return replace(manager.settings(way.port), hang_timeout=HASTY.hang_timeout)


def connected(manager: StayingManager) -> socket.socket:
    return socket.create_connection((manager.address.host, manager.address.port), PATIENCE)


@pytest.fixture
def holder(manager: StayingManager) -> Iterator[tuple[Connection[ManagerToClient], str]]:
    """A connection of whoever holds the key, and the name of a model that is loaded for it."""
    sock, tls = TcpManager(manager.address, manager.key).connect(PATIENCE)
    sock.settimeout(PATIENCE)
    connection: Connection[ManagerToClient] = Connection(sock, ManagerToClient, tls)
    with contextlib.closing(connection):
        connection.send(Hello(PROTOCOL, 1))
        connection.send(OpenModel(ModelConfig.parse({"backend": "fake"}), ""))
        yield connection, receive(connection, ModelReady).key


def receive(connection: Connection[ManagerToClient], kind: type[T]) -> T:
    """The next message of that kind."""
    while not isinstance(said := connection.receive(), kind):
        pass
    return said


TOO_LONG = "x" * 4097
LONG_NAMES: dict[str, Message] = {
    "requests[0].request_id": Submit("", [Request(TOO_LONG, [1], PARAMS)]),
    "requests[0].job": Submit("", [Request("", [1], PARAMS, job=TOO_LONG)]),
    "requests[0].family": Submit("", [Request("", [1], PARAMS, family=TOO_LONG)]),
    "requests[0].adapter.name": Submit("", [Request("", [1], PARAMS, adapter=Adapter(TOO_LONG, "", ""))]),
    "request_ids[0]": Cancel("", [TOO_LONG]),
    "name": FindAdapter(TOO_LONG),
}


@pytest.mark.parametrize("field", LONG_NAMES)
def test_no_message_has_a_name_without_end(field: str) -> None:
    body = msgspec.msgpack.encode(LONG_NAMES[field])
    with pytest.raises(msgspec.ValidationError, match=re.escape(f"length <= 4096 - at `$.{field}`")):
        msgspec.msgpack.decode(body, type=ClientMessage)


def test_who_sends_names_without_end_is_closed_alone(
    manager: StayingManager, holder: tuple[Connection[ManagerToClient], str]
) -> None:
    connection, key = holder
    requests = [Request("\0" * 14 * 2**20, prompt(index), PARAMS) for index in range(2)]
    connection.send(Submit(key, requests))
    with pytest.raises(ConnectionLost):
        receive(connection, Results)
    with opened(manager.settings()) as client:
        expect_whole(submit(client, 2, "after"))


def test_a_request_that_no_message_to_an_engine_can_hold_fails_alone(
    manager: StayingManager, holder: tuple[Connection[ManagerToClient], str]
) -> None:
    connection, key = holder
    room = MAX_FRAME_BYTES + 4 - len(encode(Submit(key, [Request("r", prompt(0), PARAMS, text="x" * 2**16)])))
    connection.send(Submit(key, [Request("r", prompt(0), PARAMS, text="x" * (2**16 + room))]))
    said = receive(connection, Results)
    assert "is over the limit of" in said.failures[0].error.message
    with opened(manager.settings()) as client:
        expect_whole(submit(client, 2, "after"))


def test_a_killed_manager_at_the_same_address_answers_the_rest(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.02")
    with StayingManager(key) as manager, opened(manager.settings()) as client:
        futures = submit(client, 16, "row")
        futures[0].result(PATIENCE)
        manager.kill()
        manager.start()
        expect_whole(futures)
        patiently(lambda: stop_models(manager_place(manager.settings())))
        assert manager.process.poll() is None, "stop ends the models; the manager is its starter's"


def test_without_the_key_nobody_gets_in_and_others_notice_nothing(manager: StayingManager, tmp_path: Path) -> None:
    make_key(tmp_path / "other.pem")
    with opened(manager.settings()) as client:
        with pytest.raises(ConfigError, match=r"^manager_key_file='.*other.pem': the manager at tcp://.* has another"):
            opened(manager.settings(key=tmp_path / "other.pem"))
        without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
        with without.wrap_socket(connected(manager)) as keyless, contextlib.suppress(OSError):
            assert not keyless.recv(1), "the manager says nothing to who has no key"
        plain = connected(manager)
        plain.sendall(encode(Hello(PROTOCOL, 1)))
        assert closed(plain)
        with manager.stopped():  # so that it accepts them all at once
            begun = [connected(manager) for _ in range(200)]
            hello = client_hello(manager.key)[:100]
            for sock in begun:
                sock.sendall(hello)
        expect_whole(submit(client, 8, "meanwhile"))
        with opened(manager.settings()) as another:
            ended, _, _ = select.select(begun, [], [], 0)
            assert len(begun) - len(ended) <= 32
            expect_whole(submit(another, 8, "another"))
        assert all(map(closed, begun))
    found = patiently(lambda: read_status(manager_place(manager.settings())))
    assert {process.host for process in found.processes} == {"127.0.0.1"}


def client_hello(key: Path) -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context(key).wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def test_the_environment_gives_both(manager: StayingManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_MANAGER", str(manager.address))
    with pytest.raises(ConfigError, match="needs the file of its key: --manager_key_file PATH, or the variable"):
        opened(SETTINGS)
    monkeypatch.setenv("MILLRACE_MANAGER_KEY_FILE", str(manager.key))
    with opened(SETTINGS) as client:
        expect_whole(submit(client, 2, "environment"))
    patiently(read_status)


def test_the_manager_finds_models_and_adapters_in_its_own_files(
    manager: StayingManager, tmp_path: Path, adapter: SamplingParams
) -> None:
    folder = shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / "model")
    with opened(manager.settings(), model=str(folder), max_loras=1) as client:
        expect_whole(submit(client, 2, "folder"))
        assert client.info.folder == str(folder)
        expect_whole({0: client.submit(prompt(0), adapter, request_id="adapted")})
        with pytest.raises(InvalidRequest, match=r"adapter /no/adapter: no such folder"):
            client.submit(prompt(0), SamplingParams(adapter="/no/adapter"), request_id="none")
    with pytest.raises(ModelNotFound, match="reads the tokenizer by the model's name, and finds none here"):
        opened(manager.settings(), model="/no/model")


@pytest.fixture
def adapter(tmp_path: Path) -> SamplingParams:
    """What names an adapter without weights."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return SamplingParams(adapter=str(folder), max_tokens=TOKENS)


def test_a_manager_that_stands_still_in_a_look_up_of_an_adapter_holds_up_no_other_request(
    manager: StayingManager, adapter: SamplingParams
) -> None:
    weights = Path(adapter.adapter) / "adapter_model.safetensors"
    with opened(manager.settings(), max_loras=1) as client, ThreadPoolExecutor(1) as beside, leased(weights) as lease:
        looked_up = beside.submit(client.submit, prompt(0), adapter, request_id="adapted")
        eventually(lease.is_wanted, "the look-up")
        expect_whole(submit(client, 2, "beside"))
        with manager.stopped():
            others = submit(client, 2, "meanwhile")
            assert not looked_up.done()
            lease.end()
        expect_whole(others)
        expect_whole({0: looked_up.result(PATIENCE)})


class Pauses:
    """A clock on which time passes in pauses alone: one is longer than a client waits for a manager."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """See time."""
        return self._now

    def sleep(self, _seconds: float) -> None:
        """See time."""
        self._now += 2 * remote.REACHED_WITHIN


def test_a_look_up_of_an_adapter_whose_manager_is_killed_ends_with_an_error_of_that(
    key: Path, adapter: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "time", Pauses())
    weights = Path(adapter.adapter) / "adapter_model.safetensors"
    with StayingManager(key) as manager, opened(manager.settings(), max_loras=1) as client:
        with ThreadPoolExecutor(1) as beside, leased(weights) as lease:
            looked_up = beside.submit(client.find_adapter, adapter.adapter)
            eventually(lease.is_wanted, "the look-up")
            with manager.stopped():
                manager.kill()
            with pytest.raises(ManagerUnavailable, match=f"no manager answers at {manager.address}"):
                looked_up.result(PATIENCE)
        manager.start()


def test_a_folder_that_a_client_names_is_not_taken_in_the_place_of_the_model(
    manager: StayingManager, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "config.json")
    for folder in (resolve(EMBEDDED_MODEL), tmp_path):
        opening = OpenModel(ModelConfig(model="/models/llama", backend="fake"), str(folder), key_digest="x")
        answer = told(manager_place(manager.settings()), opening, ModelFailed)
        assert answer.error.message.startswith("--model /models/llama: no such folder")


COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"backend": "endpoint", "backend_options": {"urls": "http://127.0.0.1:9", "key_env": "HOME"}}, "key_env='HOME'"),
    ({"backend": "server", "backend_options": {"command": "env {port}"}}, "backend='server'"),
    ({"backend": "server", "backend_options": {"preset": "ray"}, "model": "os:abort"}, "backend='server'"),
    ({"backend": "vllm", "backend_python": "/bin/env"}, "backend_python='/bin/env'"),
    ({"backend": "vllm", "backend_options": {"trust_remote_code": 1}}, "trust_remote_code=1"),
    ({"backend": "vllm", "backend_options": {"worker_cls": "a.b"}}, "worker_cls='a.b'"),
    ({"backend": "openvino", "backend_options": {"CONFIG": "/x"}}, "CONFIG='/x'"),
]


@pytest.mark.parametrize(("settings", "named"), COMMANDS, ids=[named for _, named in COMMANDS])
def test_a_client_over_tcp_names_no_program_and_no_variable(
    manager: StayingManager, settings: dict[str, Any], named: str
) -> None:
    answer = told(manager_place(manager.settings()), OpenModel(ModelConfig.parse(settings), ""), ModelFailed)
    assert named in answer.error.message
    assert answer.error.message.endswith("leave it out, or start the manager with --allow_commands")


def test_a_manager_that_allows_commands_takes_them(key: Path) -> None:
    with StayingManager(key, flags=["--allow_commands"]) as manager:
        told(manager_place(manager.settings()), OpenModel(ModelConfig.parse(COMMANDS[0][0]), ""), ModelReady)


def test_what_a_task_asks_of_vllm_is_no_command() -> None:
    check_no_commands(ModelConfig(backend="vllm").for_task("embed"))
    check_no_commands(ModelConfig(backend="llama_cpp", model="x.gguf", backend_options={"n_ctx": 64}))


def test_whoever_waits_for_a_hub_that_never_answers_holds_up_nobody(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        with StayingManager(key) as manager:
            place = manager_place(manager.settings())
            assert isinstance(place, TcpManager)
            sock, tls = place.connect(PATIENCE)
            waiting: Connection[ManagerToClient] = Connection(sock, ManagerToClient, tls)
            for message in (Hello(PROTOCOL, 1), *(FindAdapter(f"org/{number}") for number in range(200))):
                waiting.send(message)  # two at a time wait for the hub until they time out: all of them for long
            told(place, OpenModel(ModelConfig(backend="fake"), ""), ModelReady)
            waiting.close()


def test_a_model_whose_files_changed_while_a_job_used_it_is_refused(tmp_path: Path) -> None:
    ours = shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / "ours")
    opening = OpenModel(ModelConfig(model=str(ours)), "", tokenizer=tokenizer_digest(ours))
    found = found_model(opening)
    assert isinstance(found, OpenModel)
    assert found.folder == str(ours)
    (ours / "generation_config.json").write_text("{}")
    changed = found_model(replace(opening, revision=found.config.revision or ""))
    assert isinstance(changed, ErrorInfo)
    assert "the files changed while a job used them" in changed.message


def test_nobody_at_the_address_is_told_at_once_to_who_looks(key: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        place = manager_place(ManagerConfig(manager=address, manager_key_file=str(key)))
        with pytest.raises(ManagerUnavailable, match=f"^no manager answers at {address}: Connection refused$"):
            read_status(place)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_who_listens_everywhere_is_reached_by_either_version_of_ip() -> None:
    with listening(TcpAddress("::", 0)) as sock:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, sock.getsockname()[1]), PATIENCE).close()

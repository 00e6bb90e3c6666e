"""Servers over gRPC whose answers, metadata and streams are not the protocol's: each row ends, and by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from millrace.model_manager.backends.endpoint.kserve_messages import MESSAGES
from millrace.model_manager.wire.errors import ModelUnsupported
from tests.model_manager.backends.endpoint_engines import (
    answers,
    asked,
    drained,
    engine_for,
    no_long_waits,
    refusal,
    text,
)
from tests.model_manager.backends.stand_in_grpc import GrpcServers, GrpcStandIn, answer, grpc_serving

__all__ = ["no_long_waits"]

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
OUTPUT = {"name": "text_output", "datatype": "BYTES", "shape": [1]}
SAMPLING = [{"name": name, "datatype": "INT32", "shape": [1]} for name in ("max_tokens", "temperature", "stop_words")]


@pytest.fixture
def servers() -> Iterator[GrpcServers]:
    with grpc_serving() as found:
        yield found


def inferred(raw: list[bytes], **output: Any) -> bytes:
    """An answer of one tensor."""
    told = MESSAGES["ModelInferResponse"](outputs=[OUTPUT | output], raw_output_contents=raw)
    return bytes(told.SerializeToString())


NAN = b"\x00\x00\xc0\x7f"
HOSTILE = {
    "numbers": inferred([bytes(4)], datatype="INT32"),
    "not a number": inferred([NAN], datatype="FP32"),
    "no type": inferred([bytes(4)], datatype=""),
    "another tensor": inferred([bytes(4)], name="logits"),
    "a huge shape": inferred([], shape=[2**62, 2**62]),
    "an empty tensor": inferred([], shape=[0]),
    "a length beyond its bytes": inferred([b"\xff\xff\xff\xff"]),
    "no bytes at all": inferred([b""]),
    "lone surrogates": inferred([b"\x03\0\0\0\xed\xa0\x80"]),
}


@pytest.mark.parametrize("told", HOSTILE.values(), ids=list(HOSTILE))
def test_an_answer_that_is_no_text_is_no_answer_and_no_other_row_notices(servers: GrpcServers, told: bytes) -> None:
    server = servers.start(lambda prompt, _tries: told if prompt == "bad" else None)
    with engine_for(server.url, dialect="kserve", retries=1) as engine:
        found = answers(engine, ["good", "bad", "other"])
    kind, message = refusal(found["bad"])
    assert (kind, message.partition(";")[0]) == ("ServerFailed", "no answer in 2 tries")
    assert (text(found["good"]), text(found["other"])) == ("<good>", "<other>")


@pytest.mark.parametrize("pause", ["9" * 5000, "-5", "1e9", "soon"])
def test_a_pause_that_is_no_number_is_no_pause(servers: GrpcServers, pause: str) -> None:
    busy: Any = ("RESOURCE_EXHAUSTED", (("grpc-retry-pushback-ms", pause),))
    server = servers.start(lambda _prompt, tries: busy if tries == 1 else None)
    with engine_for(server.url, dialect="kserve") as engine:
        assert text(answers(engine, ["a"])["a"]) == "<a>"


def test_inputs_of_a_wrong_type_are_the_failure_of_the_rows_that_need_them(servers: GrpcServers) -> None:
    server = servers.start(metadata={"inputs": [TEXT, *SAMPLING], "outputs": [OUTPUT]})
    with engine_for(server.url, dialect="kserve") as engine:
        engine.add(asked("warm", temperature=0.5))
        engine.add(asked("stops", stop=("x",)))
        engine.add(asked("cold"))
        found = drained(engine)
    assert refusal(found["warm"]) == ("InvalidRequest", "temperature=0.5: the model takes INT32")
    assert refusal(found["stops"]) == ("InvalidRequest", "stop_words='x': the model takes INT32")
    assert text(found["cold"]) == "<cold>"


@pytest.mark.parametrize(
    "metadata",
    [
        {"inputs": [TEXT | {"shape": [1] * 100_000}], "outputs": [OUTPUT]},
        {"inputs": [TEXT], "outputs": [OUTPUT | {"datatype": "FP32"}]},
        {"inputs": [], "outputs": []},
    ],
    ids=["dimensions", "type", "nothing"],
)
def test_metadata_that_no_text_fits_ends_the_load(servers: GrpcServers, metadata: Any) -> None:
    server = servers.start(metadata=metadata)
    with pytest.raises(ModelUnsupported, match=r"^m: "), engine_for(server.url, dialect="kserve"):
        pass


class Endless(GrpcStandIn):
    """Answers a call with messages that never end."""

    def service(self, handler_call_details: Any) -> Any:
        """See GrpcStandIn."""
        if not handler_call_details.method.endswith("/ModelInfer"):
            return super().service(handler_call_details)

        def stream(_body: bytes, context: Any) -> Iterator[bytes]:
            whole = bytes(answer("a").SerializeToString())
            return itertools.takewhile(lambda _: context.is_active(), itertools.repeat(whole))

        return grpc.unary_stream_rpc_method_handler(stream)


def test_a_stream_without_end_costs_its_rows_their_tries_and_no_more(servers: GrpcServers) -> None:
    server = servers.start(kind=Endless)
    with engine_for(server.url, dialect="kserve", retries=1, timeout=0.5) as engine:
        found = answers(engine, ["a", "b"])
    assert {refusal(each)[0] for each in found.values()} == {"ServerFailed"}

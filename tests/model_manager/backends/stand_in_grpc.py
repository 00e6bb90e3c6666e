"""Servers that speak KServe v2 over gRPC and fail on demand: real sockets, in threads of the test's process.

The model `m` has the inputs of the other stand-ins (stand_in_server.py), and the same texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from millrace.model_manager.backends.endpoint.kserve_messages import CONTENTS, MESSAGES
from tests.model_manager.backends.stand_in_server import INPUTS, Behaviour, text_for

_SERVICE = "/inference.GRPCInferenceService/"
_THREADS = 80


class GrpcStandIn(grpc.GenericRpcHandler):
    """One server. `behaves` gives None for an answer, the name of a status or of a fault, or a status and metadata."""

    def __init__(
        self, behaves: Behaviour | None = None, key: str = "", *, is_ready: bool = True, metadata: Any = None
    ) -> None:
        self.metadata = metadata
        """What it says of its tensors, in the place of the truth."""
        self.behaves: Behaviour = behaves or (lambda _prompt, _tries: None)
        self.key = key
        self.is_ready = is_ready
        self.url = ""
        self.seen: list[dict[str, list[Any]]] = []
        """Values of input tensors, in order of requests."""
        self.tries: dict[str, int] = {}
        self.in_flight = self.most_in_flight = 0
        self.release = threading.Event()
        """Answers of the behaviour "wait" come when it is set."""
        self._lock = threading.Lock()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method, as grpc asks for it."""
        name = handler_call_details.method.removeprefix(_SERVICE)
        if (method := getattr(self, f"_{name}", None)) is None:
            return None

        def handle(body: bytes, context: Any) -> bytes:
            given = dict(context.invocation_metadata()).get("authorization", "")
            if self.key and given != f"Bearer {self.key}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"Incorrect API key provided: {given}")
            found = method(MESSAGES[f"{name}Request"].FromString(body), context)
            return found if isinstance(found, bytes) else bytes(found.SerializeToString())

        return grpc.unary_unary_rpc_method_handler(handle)

    def _ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name != "m":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        return MESSAGES["ModelReadyResponse"](ready=self.is_ready)

    def _ModelMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        if self.metadata is not None:
            return MESSAGES["ModelMetadataResponse"](name="m", **self.metadata)
        inputs = [{"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in INPUTS.items()]
        inputs.append({"name": "top_k", "datatype": "FP16", "shape": [-1, 1]})
        outputs = [{"name": "text_output", "datatype": "BYTES", "shape": [-1, -1]}]
        return MESSAGES["ModelMetadataResponse"](name="m", inputs=inputs, outputs=outputs)

    def _ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        values = {each.name: list(getattr(each.contents, CONTENTS[each.datatype])) for each in request.inputs}
        prompt = values["text_input"][0].decode()
        with self._lock:
            self.seen.append(values)
            self.tries[prompt] = self.tries.get(prompt, 0) + 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return self._behave(prompt, self.behaves(prompt, self.tries[prompt]), context)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _behave(self, prompt: str, what: Any, context: Any) -> Any:
        match what:
            case None:
                return answer(prompt)
            case bytes():
                return what
            case "wait":
                self.release.wait()
                return answer(prompt)
            case "in contents":
                found = answer(prompt)
                found.outputs[0].contents.bytes_contents.append(found.raw_output_contents.pop()[4:])
                return found
            case "empty":
                return MESSAGES["ModelInferResponse"]()
            case "cut":
                return answer(prompt, lambda raw: raw[:-1])
            case "no text":
                return answer(prompt, lambda _raw: b"\1\0\0\0\xff")
            case "large":
                return answer(prompt, lambda raw: raw + bytes(1000))
            case "binary":
                return b"\xff\xfe\x00" * 40
        status, metadata = what if isinstance(what, tuple) else (what, ())
        context.set_trailing_metadata(metadata)
        return context.abort(grpc.StatusCode[status], f"no {prompt}")


def answer(prompt: str, change: Callable[[bytes], bytes] = lambda raw: raw) -> Any:
    """A ModelInferResponse as Triton sends it, with the text's bytes beside the tensor."""
    text = text_for(prompt).encode()
    output = {"name": "text_output", "datatype": "BYTES", "shape": [1, 1]}
    raw = change(len(text).to_bytes(4, "little") + text)
    return MESSAGES["ModelInferResponse"](outputs=[output], raw_output_contents=[raw])


class GrpcServers:
    """Stand-ins, each with its server."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[GrpcStandIn, Any]] = {}

    def start(
        self,
        behaves: Behaviour | None = None,
        *,
        credentials: Any = None,
        kind: type[GrpcStandIn] = GrpcStandIn,
        port: int = 0,
        **settings: Any,
    ) -> GrpcStandIn:
        """One more server, with TLS if there are credentials; `port` 0 is a free one."""
        stand_in = kind(behaves, **settings)
        server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=[stand_in])
        if credentials is None:
            stand_in.url = f"grpc://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        else:
            stand_in.url = f"grpcs://localhost:{server.add_secure_port('localhost:0', credentials)}"
        server.start()
        self._running[stand_in.url] = stand_in, server
        return stand_in

    @property
    def urls(self) -> set[str]:
        """Addresses of the servers that run."""
        return set(self._running)

    def stop(self, stand_in: GrpcStandIn) -> None:
        """End one: its port refuses connections from now on, and calls in flight are cut off."""
        _, server = self._running.pop(stand_in.url)
        stand_in.release.set()
        server.stop(grace=None).wait()

    def close(self) -> None:
        """End all of them."""
        for stand_in, _ in list(self._running.values()):
            self.stop(stand_in)


@contextmanager
def grpc_serving() -> Iterator[GrpcServers]:
    """Servers, ended at the end."""
    servers = GrpcServers()
    try:
        yield servers
    finally:
        servers.close()

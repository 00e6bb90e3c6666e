"""The Open Inference Protocol over gRPC: the tensors of `kserve.py` in the messages of `kserve_messages.py`."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.message import DecodeError

from ...wire.errors import InvalidRequest
from ...wire.request import Request
from .dialects import Call, Garbled
from .kserve import KServe, Tensor
from .kserve_messages import CONTENTS, MESSAGES

_SERVICE = "/inference.GRPCInferenceService"
_MODEL_READY, _METADATA, _INFER = (f"{_SERVICE}/{method}" for method in ("ModelReady", "ModelMetadata", "ModelInfer"))


class KServeGrpc(KServe):
    """Text in one tensor, text out of one."""

    def __init__(self, model: str) -> None:
        super().__init__(model, generates=False)
        named = MESSAGES["ModelReadyRequest"](name=model).SerializeToString()
        self.probes = (Call(_MODEL_READY, named), Call(_METADATA, named))

    def learn(self, route: str, body: bytes) -> None:
        """Whether the model is ready, and which tensors there are."""
        found = _message(f"{route.rpartition('/')[2]}Response", body)
        if route == _METADATA:
            inputs = [each for each in _tensors(found.inputs) if each.datatype in CONTENTS]
            self.know(inputs, _tensors(found.outputs))
        elif not found.ready:
            raise Garbled(f"the model {self.model} is not ready")

    def call(self, request: Request) -> Call:
        """A ModelInferRequest."""
        message = MESSAGES["ModelInferRequest"](model_name=self.model, outputs=[{"name": self.text_output}])
        for tensor in self.tensors(request):
            sent = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            values = [each.encode() if isinstance(each, str) else each for each in tensor.data]
            try:
                getattr(sent.contents, CONTENTS[tensor.datatype]).extend(values)
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"{tensor.name}: the model takes {tensor.datatype}: {error}") from None
        return Call(_INFER, message.SerializeToString())

    def text_of(self, body: bytes) -> str:
        """The text in a ModelInferResponse, which has its tensors' bytes beside them or, if it likes, in them."""
        found = _message("ModelInferResponse", body)
        for place, output in enumerate(found.outputs):
            if output.name == self.text_output:
                if output.datatype != "BYTES":
                    raise Garbled(f"its answer's tensor {output.name} has the type {output.datatype!r}, not BYTES")
                raw = found.raw_output_contents
                return _text(raw[place] if place < len(raw) else _sized(output.contents.bytes_contents))
        raise Garbled(f"its answer has no tensor {self.text_output}")


def _message(name: str, body: bytes) -> Any:
    try:
        return MESSAGES[name].FromString(body)
    except DecodeError as error:
        raise Garbled(f"its answer is no {name}: {error}") from None


def _tensors(described: Any) -> list[Tensor]:
    return [Tensor(each.name, each.datatype, list(each.shape)) for each in described]


def _sized(values: Any) -> bytes:
    """Elements as a raw tensor has them: each behind its length."""
    return b"".join(struct.pack("<I", len(each)) + each for each in values)


def _text(raw: bytes) -> str:
    """The first element of a raw tensor of type BYTES."""
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 + size or len(raw) < 4:
        raise Garbled("its answer's tensor is cut off")
    try:
        return raw[4 : 4 + size].decode()
    except UnicodeDecodeError as error:
        raise Garbled(f"its answer is no text: {error}") from None

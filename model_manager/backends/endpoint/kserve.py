"""The Open Inference Protocol over HTTP (KServe v2), tensors to `/v2/models/NAME/infer`, and Triton's `/generate`.

`kserve_grpc.py` is the same protocol over gRPC.

The protocol names no sampling parameters. What the model's metadata lists as inputs is what can be asked for: the names
of TensorRT-LLM's model (`max_tokens`, `stop_words`, …), or vLLM's one input `sampling_parameters`, a JSON text.
Source: KServe's Open Inference Protocol v2; Triton's docs/protocol/extension_generate.md; the model configurations of
TensorRT-LLM's and vLLM's back ends of Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ...wire.dialect_parameters import DialectParameters
from ...wire.errors import InvalidRequest, ModelUnsupported
from ...wire.request import Request
from .dialects import (
    Call,
    Garbled,
    ServerAnswer,
    check_task,
    check_text,
    cut_at_stop,
    given,
    parsed,
)

_INPUTS = {
    "max_tokens": ("max_tokens", "max_new_tokens", "request_output_len"),
    "temperature": ("temperature",),
    "top_k": ("top_k", "runtime_top_k"),
    "top_p": ("top_p", "runtime_top_p"),
    "min_p": ("min_p",),
    "repetition_penalty": ("repetition_penalty",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "min_tokens": ("min_tokens", "min_length"),
    "seed": ("random_seed", "seed"),
    "stop": ("stop_words", "stop"),
    "bad_words": ("bad_words",),
}
"""Names of input tensors that each parameter is known by."""
_JSON_INPUT = "sampling_parameters"
_IN_JSON = frozenset(("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")) | {
    *("min_tokens", "seed", "stop", "stop_token_ids", "bad_words", "ignore_eos", "include_stop_str_in_output")
}
_MOST_DIMENSIONS = 16
_WHOLE = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


class Tensor(msgspec.Struct):
    """A tensor's name, type and shape, and in a request or a reply its values."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] = []


class _Metadata(msgspec.Struct):
    inputs: list[Tensor]
    outputs: list[Tensor]


class _Inferred(msgspec.Struct):
    outputs: list[Tensor]


class _TritonGenerated(msgspec.Struct):
    text_output: str | list[str]


class KServe:
    """Text in one tensor, text out of one; with `generates` by Triton's generate route instead of tensors."""

    needs_probes = True

    def __init__(self, model: str, *, generates: bool) -> None:
        self.name = "triton" if generates else "kserve"
        self.max_model_len = 0
        self._generates = generates
        self._route = f"/v2/models/{quote(model, safe='')}"
        self.probes: tuple[Call, ...] = (Call(f"{self._route}/ready"), Call(self._route))
        self.model = model
        self.text_output = ""
        self._inputs: dict[str, Tensor] = {}
        self._text_input = ""

    def learn(self, route: str, body: bytes) -> None:
        """The model's metadata: which tensors there are."""
        if route != self._route:
            return
        try:
            metadata = parsed(body, _Metadata)
        except Garbled as error:
            raise ModelUnsupported(f"{self.model}: its metadata: {error}") from None
        self.know(metadata.inputs, metadata.outputs)

    def know(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """The model's tensors; raises ModelUnsupported if its text is in none of them."""
        if odd := next((tensor.name for tensor in (*inputs, *outputs) if len(tensor.shape) > _MOST_DIMENSIONS), None):
            raise ModelUnsupported(f"{self.model}: its tensor {odd} has more than {_MOST_DIMENSIONS} dimensions")
        self._inputs = {tensor.name: tensor for tensor in inputs}
        self._text_input = self._named("input", [each for each in inputs if each.datatype == "BYTES"])
        self.text_output = self._named("output", [each for each in outputs if each.datatype == "BYTES"])

    def _named(self, side: str, texts: list[Tensor]) -> str:
        """The tensor that holds the text: `text_input` or `text_output`, or the only one of type BYTES."""
        names = [tensor.name for tensor in texts]
        if f"text_{side}" in names:
            return f"text_{side}"
        if len(names) != 1:
            raise ModelUnsupported(f"{self.model}: has no {side} text_{side}, nor just one of type BYTES")
        return names[0]

    def base(self, url: str) -> str:
        """The URL as it was given."""
        return url

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what the model has no input for."""
        check_task(request, self.name, ("generate",))
        check_text(request, self.name)
        DialectParameters(f"{self.name} with the inputs of {self.model}", self._parameters()).check(request.params)
        for name in ("max_tokens", "temperature"):
            if name in given(request.params, (name,)) and name not in self._parameters():
                raise InvalidRequest(f"{name}: the model {self.model} has no input for it")

    def _parameters(self) -> frozenset[str]:
        if _JSON_INPUT in self._inputs:
            return _IN_JSON | {"max_tokens", "temperature"}
        return frozenset(name for name in _INPUTS if self._tensor(name) is not None)

    def _tensor(self, parameter: str) -> Tensor | None:
        names = _INPUTS.get(parameter, ())
        return next((self._inputs[name] for name in names if name in self._inputs), None)

    def call(self, request: Request) -> Call:
        """A JSON body."""
        if self._generates:
            return Call(f"{self._route}/generate", msgspec.json.encode(self._values(request)))
        fields = {"inputs": self.tensors(request), "outputs": [{"name": self.text_output}]}
        return Call(f"{self._route}/infer", msgspec.json.encode(fields))

    def tensors(self, request: Request) -> list[Tensor]:
        """What is sent: tensors of one element each, but lists of words."""
        return [self._sent(self._inputs[name], value) for name, value in self._values(request).items()]

    def _values(self, request: Request) -> dict[str, Any]:
        """Values of inputs, by name."""
        params = request.params
        wanted = {"max_tokens": params.max_tokens, "temperature": params.temperature} | given(params, _IN_JSON)
        whole: dict[str, Any] = {self._text_input: request.text}
        for name, value in (("stream", False), ("exclude_input_in_output", True)):
            if name in self._inputs:
                whole[name] = value
        if _JSON_INPUT in self._inputs:
            return whole | {_JSON_INPUT: msgspec.json.encode(wanted).decode()}
        if not params.temperature and self._tensor("top_k") is not None:  # greedy, as TensorRT-LLM has it
            wanted = {name: value for name, value in wanted.items() if name != "temperature"} | {"top_k": 1}
        for name, value in wanted.items():
            if (tensor := self._tensor(name)) is not None:
                whole[tensor.name] = value
        return whole

    def _sent(self, tensor: Tensor, value: Any) -> Tensor:
        data = list(value) if isinstance(value, tuple | list) else [value]
        if tensor.datatype in _WHOLE:
            data = [_whole(tensor, each) for each in data]
        shape = [1] * (len(tensor.shape) - 1) + [len(data)]
        return Tensor(tensor.name, tensor.datatype, shape, data)

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The text; the protocol tells neither how it ended nor how many tokens it has."""
        del headers
        text, stop = cut_at_stop(self.text_of(body), request.params)
        return ServerAnswer(text=text, stop_reason=stop)

    def text_of(self, body: bytes) -> str:
        """The text in an answer."""
        if self._generates:
            found = parsed(body, _TritonGenerated).text_output
            texts = [found] if isinstance(found, str) else found
        else:
            outputs = parsed(body, _Inferred).outputs
            texts = next((tensor.data for tensor in outputs if tensor.name == self.text_output), [])
        first: Any = texts
        while isinstance(first, list) and first:
            first = first[0]
        if not isinstance(first, str):
            raise Garbled(f"its answer has no text in {self.text_output}")
        return first


def _whole(tensor: Tensor, value: Any) -> int:
    """The value for an input of integers; raises InvalidRequest for text, and for a number that is none."""
    if isinstance(value, int | float) and value == int(value):
        return int(value)
    raise InvalidRequest(f"{tensor.name}={value!r}: the model takes {tensor.datatype}")

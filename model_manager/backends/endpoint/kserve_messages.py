"""Messages of the Open Inference Protocol over gRPC (KServe v2): the fields that are sent or read here.

A table of field numbers, made into classes in a pool of their own, so they cannot clash with another client's. Fields
that are not in it pass unread, as protobuf has it.
Source: KServe's Open Inference Protocol v2, gRPC.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "inference"
_TENSOR = "name=1 string", "datatype=2 string", "shape=3 int64*"
_NAMED = "name=1 string", "version=2 string"
_TABLE = {
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": ("ready=1 bool",),
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": _TENSOR,
    "ModelMetadataResponse": ("name=1 string", "inputs=4 TensorMetadata*", "outputs=5 TensorMetadata*"),
    "InferTensorContents": (
        *("bool_contents=1 bool*", "int_contents=2 int32*", "int64_contents=3 int64*", "uint_contents=4 uint32*"),
        *("uint64_contents=5 uint64*", "fp32_contents=6 float*", "fp64_contents=7 double*", "bytes_contents=8 bytes*"),
    ),
    "InferTensor": (*_TENSOR, "contents=5 InferTensorContents"),
    "InferRequestedOutputTensor": ("name=1 string",),
    "ModelInferRequest": ("model_name=1 string", "inputs=5 InferTensor*", "outputs=6 InferRequestedOutputTensor*"),
    "ModelInferResponse": ("model_name=1 string", "outputs=5 InferTensor*", "raw_output_contents=6 bytes*"),
}
"""Fields by message: `name=number type`, with a star for a repeated field."""
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where the values of a tensor of each type stand; two-byte floats stand in none."""


def _described() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="inference.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _TABLE.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _describe(field, message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = ((name, pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _TABLE)
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found}


def _describe(field: str, message: Any) -> None:
    name, _, rest = field.partition("=")
    number, _, kind = rest.partition(" ")
    types = descriptor_pb2.FieldDescriptorProto
    described = message.field.add(name=name, number=int(number))
    described.label = types.LABEL_REPEATED if kind.endswith("*") else types.LABEL_OPTIONAL
    kind = kind.rstrip("*")
    if kind in _TABLE:
        described.type, described.type_name = types.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        described.type = types.Type.Value(f"TYPE_{kind.upper()}")


MESSAGES = _described()
"""Classes of messages, by name."""

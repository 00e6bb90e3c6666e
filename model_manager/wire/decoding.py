"""Decoders of msgspec for types of ours: one thread at a time makes one.

msgspec keeps what it knows of a Struct with the Struct, and fills it in as the type is first decoded. A thread that
decodes the same type meanwhile reads a null pointer, and its process ends by SIGSEGV (msgspec 0.22). A type that has a
decoder is known whole.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_making = threading.Lock()
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


@overload
def json_decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON text to this type; threads share it."""
    return _json_decoder(kind)


@overload
def msgpack_decoder(kind: type[_T]) -> msgspec.msgpack.Decoder[_T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of MessagePack to this type; threads share it."""
    return _msgpack_decoder(kind)


def convert(value: Any, kind: type[_T], *, str_keys: bool = False) -> _T:
    """A value of dicts, lists and scalars as this type; raises msgspec.ValidationError.

    `str_keys`: names in dicts may stand for integers, as in JSON.
    """
    json_decoder(kind)
    try:
        return msgspec.convert(value, kind, str_keys=str_keys)
    except UnicodeEncodeError as error:  # of a text with a lone surrogate, where none or another one is expected
        raise msgspec.ValidationError(str(error)) from None


@cache
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _making:
        return msgspec.json.Decoder(kind)


@cache
def _msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _making:
        return msgspec.msgpack.Decoder(kind)

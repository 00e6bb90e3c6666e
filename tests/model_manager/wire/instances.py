"""Hypothesis strategies for messages, derived from their types, so that a new field or message is covered at once."""

import enum
import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.request import Name
from millrace.model_manager.wire.sampling import SamplingParams

_SCHEMAS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)

CONSTRAINTS: st.SearchStrategy[Constraint] = st.one_of(
    st.fixed_dictionaries({"regex": st.text()}),
    st.fixed_dictionaries({"json_schema": st.booleans() | st.dictionaries(st.text(), _SCHEMAS, max_size=3)}),
    st.fixed_dictionaries({"json": st.just(True)}),
    st.fixed_dictionaries({"grammar": st.text(min_size=1).filter(str.strip)}),
    st.fixed_dictionaries({"choice": st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True).map(tuple)}),
).map(Constraint.parse)

_SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 2**31),
        "temperature": st.floats(0, 100),
        "top_k": st.integers(0, 2**31),
        "top_p": st.floats(0, 1, exclude_min=True),
        "n": st.integers(1, 64),
        "seed": st.integers(0, 2**63 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=256), max_size=16).map(tuple),
        "stop_token_ids": st.lists(st.integers(0, 2**31)).map(tuple),
        "ignore_eos": st.booleans(),
        "priority": st.integers(-(2**31), 2**31 - 1),
        "deadline": st.floats(0, exclude_min=True, allow_infinity=False),
        "cache_salt": st.text(max_size=256),
        "adapter": st.text(),
        "prompt_logprobs": st.integers(0, 20),
        "min_tokens": st.just(1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(0, 1, exclude_min=True),
        "repetition_penalty": st.floats(0, 100, exclude_min=True),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
        "allowed_token_ids": st.lists(st.integers(0, 2**31 - 1), min_size=1).map(tuple),
        "bad_words": st.lists(st.text(min_size=1, max_size=256).filter(str.strip)).map(tuple),
        "include_stop_str_in_output": st.booleans(),
        "logprobs": st.integers(0, 20),
        "constraint": CONSTRAINTS,
    },
).map(SamplingParams.parse)

_MODEL = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(min_size=1).filter(lambda name: name.strip() and "\0" not in name),
        "revision": st.text(),
        "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
        "quantization": st.sampled_from(["none", "int8", "int4", "fp8"]),
        "kv_cache_dtype": st.sampled_from(["auto", "int8", "fp8"]),
        "max_model_len": st.integers(2, 2**31),
        "max_num_seqs": st.integers(1, 512),
        "block_size": st.sampled_from([8, 16, 32, 64, 128]),
        "kv_cache_gib": st.floats(0, exclude_min=True, allow_infinity=False),
        "num_threads": st.integers(1, 999),
        "num_engines": st.integers(1, 64),
        "tensor_parallel": st.integers(1, 64),
        "prefix_caching": st.booleans(),
        "max_lora_rank": st.integers(1, 1024),
        "backend": st.sampled_from(["torch", "fake"]),
    },
).map(ModelConfig.parse)

_MANAGER = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("linger", "idle_timeout", "lookahead"), st.floats(0, allow_infinity=False)),
        **dict.fromkeys(("heartbeat", "hang_timeout"), st.floats(0, exclude_min=True, allow_infinity=False)),
        "max_restarts": st.integers(0, 2**31),
    },
).map(ManagerConfig.parse)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
"""Values of a chat message's fields."""


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Valid values of a type that is used in a message."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of([of_type(argument) for argument in arguments])
    if origin is list:
        return st.lists(of_type(arguments[0]), max_size=3)
    if origin is tuple:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(of_type(arguments[0]), of_type(arguments[1]), max_size=3)
    if origin is Literal:
        return st.sampled_from(arguments)
    return _of_class(kind)


def _of_class(kind: Any) -> st.SearchStrategy[Any]:
    plain: dict[Any, st.SearchStrategy[Any]] = {
        ManagerConfig: _MANAGER,
        types.NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(),
        Name: st.text(),
        bytes: st.binary(max_size=64),
        SamplingParams: _SAMPLING,
        ModelConfig: _MODEL,
        Any: _JSON,
    }
    if kind in plain:
        return plain[kind]
    if issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    assert issubclass(kind, msgspec.Struct), f"messages hold no {kind}"
    return _of_struct(kind)


@cache
def _of_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    def instances() -> st.SearchStrategy[Any]:
        return st.builds(kind, **{field.name: of_type(field.type) for field in msgspec.structs.fields(kind)})

    return st.deferred(instances)  # an answer holds answers

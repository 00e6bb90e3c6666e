"""Errors cross processes as their class and sentence."""

import re

import msgspec
import pytest

from millrace.model_manager.wire import errors
from millrace.model_manager.wire.errors import (
    EngineError,
    ErrorInfo,
    InvalidRequest,
    MillraceError,
    ModelLoadFailed,
    one_line,
)


def _tree(root: type[MillraceError]) -> list[type[MillraceError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


@pytest.mark.parametrize("kind", _tree(MillraceError))
def test_an_error_arrives_as_the_class_it_was_sent_as(kind: type[MillraceError]) -> None:
    info = kind("max_tokens=0: takes at least 1").info()
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=ErrorInfo).exception()
    assert type(arrived) is kind
    assert str(arrived) == "max_tokens=0: takes at least 1"


def test_a_class_that_this_side_does_not_know_is_an_engine_error() -> None:
    arrived = ErrorInfo(kind="SomethingNewer", message="why").exception()
    assert type(arrived) is EngineError
    assert str(arrived) == "why"


def test_a_name_that_is_no_error_is_never_instantiated() -> None:
    assert type(ErrorInfo(kind="SystemExit", message="0").exception()) is EngineError


def test_our_own_errors_are_kept_and_others_are_wrapped_with_the_class_they_had() -> None:
    assert ErrorInfo.of(InvalidRequest("x"), ModelLoadFailed) == ErrorInfo(kind="InvalidRequest", message="x")
    wrapped = ErrorInfo.of(KeyError("weights"), ModelLoadFailed)
    assert wrapped == ErrorInfo(kind="ModelLoadFailed", message="KeyError: 'weights'")


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    assert errors.__doc__ is not None
    lines = re.findall(r"^ {4}([│├└─ ]*)(\w+)", errors.__doc__, re.MULTILINE)
    depths = {name: len(branch) // 4 for branch, name in lines}
    here = [kind for kind in _tree(MillraceError) if kind.__module__ == errors.__name__]
    assert depths == {kind.__name__: sum(issubclass(base, MillraceError) for base in kind.__mro__) - 1 for kind in here}


def test_what_an_engine_says_is_one_line_cut_between_words() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("word " * 100, 20) == "word word word …"

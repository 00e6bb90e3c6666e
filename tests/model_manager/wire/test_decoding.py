"""Threads may decode a type that nobody has decoded before."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace

_PRODUCT = Path(millrace.__file__).parent
_FIRST = """
import sys, threading
import msgspec
from millrace.model_manager.wire.decoding import convert, json_decoder, msgpack_decoder

plain = {{"last": {{"a": [1]}}, "inner": {{"last": {{"b": [2]}}}}}}
text, packed = msgspec.json.encode(plain), msgspec.msgpack.encode(plain)
fields = [(f"field{{number}}", dict[str, list[int]] | None, None) for number in range(20)]
fields.append(("last", dict[str, list[int]]))
sys.setswitchinterval(1e-6)
for number in range({times}):
    inner = msgspec.defstruct(f"Inner{{number}}", fields, kw_only=True)
    outer = msgspec.defstruct(f"Outer{{number}}", [*fields, ("inner", inner)], kw_only=True)
    found, together = [], threading.Barrier(3)

    def decode():
        together.wait()
        found.append({decoded})

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.inner.last for each in found] == [{{"b": [2]}}] * 3
"""
_NO_STRUCTS = {"dict", "list", "tuple", "str", "int", "float", "bool", "Any", "msgspec", "Raw", "object"}


def _ended(decoded: str, times: int) -> subprocess.CompletedProcess[str]:
    program = _FIRST.format(decoded=decoded, times=times)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "decoded",
    ["json_decoder(outer).decode(text)", "msgpack_decoder(outer).decode(packed)", "convert(plain, outer)"],
)
def test_threads_may_decode_a_type_for_the_first_time_together(decoded: str) -> None:
    done = _ended(decoded, 300)
    assert done.returncode == 0, done.stderr


def test_nothing_else_decodes_structs() -> None:
    """Msgspec alone, asked by several threads first, ends the process (see the module)."""
    found = [
        f"{path.relative_to(_PRODUCT)}:{call.lineno}: {ast.unparse(call)}"
        for package in ("model_manager", "pipelines", "serving", "transforms")
        for path in (_PRODUCT / package).rglob("*.py")
        for call in _typed(ast.parse(path.read_text()))
        if path.name != "decoding.py"
    ]
    assert found == []


def _typed(module: ast.Module) -> Iterator[ast.Call]:
    """Calls that give msgspec a type which may hold a Struct."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("msgspec."):
            by_name = [each.value for each in node.keywords if each.arg == "type"]
            function = ast.unparse(node.func).rpartition(".")[2]
            by_place = {"Decoder": node.args[:1], "decode": node.args[1:], "convert": node.args[1:]}
            kinds = [*by_place.get(function, []), *by_name]
            if any(_names(kind) - _NO_STRUCTS for kind in kinds):
                yield node


def _names(kind: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}

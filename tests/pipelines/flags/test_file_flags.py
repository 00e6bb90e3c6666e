"""--constraint takes JSON or a file: a constraint, a JSON Schema, or a grammar."""

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.wire.constraint import Constraint
from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.flags.job_options import parse

SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
LARK = 'start: "x" A\nA: /[ab]/\n'


def taken(given: str) -> Constraint | None:
    return parse(["--input", "a", "--constraint", given]).sampling.constraint


def refused(given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        taken(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FILES: dict[str, tuple[str, Constraint]] = {
    "constraint.json": (json.dumps({"choice": ["a", "b"]}), Constraint(choice=("a", "b"))),
    "schema.json": (json.dumps(SCHEMA), Constraint(json_schema=SCHEMA)),
    "mark.json": ("\ufeff" + json.dumps(SCHEMA, indent=1), Constraint(json_schema=SCHEMA)),
    "reference.json": (json.dumps({"$ref": "#/$defs/a", "$defs": {"a": SCHEMA}}), Constraint(
        json_schema={"$ref": "#/$defs/a", "$defs": {"a": SCHEMA}}
    )),
    "enum.json": (json.dumps({"enum": ["a", 1]}), Constraint(json_schema={"enum": ["a", 1]})),
    "const.json": (json.dumps({"const": "a"}), Constraint(json_schema={"const": "a"})),
    "format.json schema": (json.dumps({"format": "date"}), Constraint(json_schema={"format": "date"})),
    "openai.json": (json.dumps({"name": "a", "strict": True, "schema": SCHEMA}), Constraint(json_schema=SCHEMA)),
    "format.json": (
        json.dumps({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
        Constraint(json_schema=SCHEMA),
    ),
    "of no kind": (json.dumps(SCHEMA), Constraint(json_schema=SCHEMA)),
    "grammar.lark": (LARK, Constraint(grammar=LARK)),
    "{a}.json": (json.dumps({"json": True}), Constraint(json=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_taken_for_what_it_holds(name: str, tmp_path: Path) -> None:
    text, constraint = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert taken(str(tmp_path / name)) == constraint


@pytest.mark.parametrize("fields", [{"json_schema": SCHEMA}, SCHEMA, {"schema": SCHEMA, "name": "a"}], ids=str)
def test_a_text_is_taken_as_a_files_is(fields: Any) -> None:
    assert taken(f" {json.dumps(fields)}") == Constraint(json_schema=SCHEMA)


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "a.json": (b'{"json_schema":\n {"type" 5}}', ": is not JSON: Expecting ':' delimiter (line 2, column 10)"),
    "twice.json": (b'{"regex": "a", "regex": "b"}', ": is not JSON: the key 'regex' is twice in an object"),
    "empty.json": (b"", ": takes JSON that begins with {, or a file"),
    "list.json": (b"[1]", ": takes JSON that begins with {, or a file"),
    "grammar.txt": (LARK.encode(), "or a grammar in a .lark file, got 'start"),
    "bytes.json": (b'{"regex": "\xff"}', ": takes UTF-8, got another byte at 11"),
    "options.json": (b'{"options": ["a"]}', ": unknown kind 'options'"),
    "both.json": (b'{"regex": "a", "type": "object"}', ": unknown kind 'type'"),
    "schema.json": (b'{"type": "object", "properties": {"a": {"not": {}}}}', ": json_schema: `not` at #/properties/a"),
    "a.lark": (b'start: A\nA: "x" B\n', ": grammar: line 2, column 4: `B` is not defined"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_is_wrong_in_a_file_is_told_by_its_name(name: str, tmp_path: Path) -> None:
    content, said = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    assert refused(str(tmp_path / name)).startswith(f"--constraint {tmp_path / name}{said}"[:40])
    assert said in refused(str(tmp_path / name))


@pytest.mark.parametrize("given", ["none.json", "a|b", '"a"', "", "true"])
def test_what_is_neither_json_nor_a_file_is_told(given: str) -> None:
    assert refused(given).startswith(f"--constraint {given}: no such file; takes JSON that begins with {{, or a file")


def test_a_folder_is_told(tmp_path: Path) -> None:
    assert refused(str(tmp_path)).startswith(
        f"--constraint {tmp_path}: is a folder; takes JSON that begins with {{, or a file"
    )

"""Wrong flags of tasks on documents get one sentence, before anything runs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apache_beam.internal import pickler
from apache_beam.internal.cloudpickle import cloudpickle

from millrace.pipelines.commands.job_commands import transform_of
from millrace.pipelines.flags.job_options import JobOptions, parse
from millrace.transforms.tasks import MAX_TOKENS, ClassifySettings, ExtractSettings
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.document_template import DEFAULT_TEMPLATE
from millrace.transforms.typed.values import value_of
from tests.pipelines.refusals import Refused

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
MODULE = """
import dataclasses, enum
import pydantic
from invoice_parts import Line

class Currency(enum.StrEnum):
    EUR = "EUR"

class Invoice(pydantic.BaseModel):
    currency: Currency
    lines: list[Line]

    @pydantic.field_validator("lines")
    @classmethod
    def some(cls, lines):
        if not lines:
            raise ValueError("no lines")
        return lines

class Outer:
    @dataclasses.dataclass
    class Inner:
        name: str

NUMBER = 7
"""
PARTS = """
import dataclasses

@dataclasses.dataclass
class Line:
    item: str
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Invoice over 12 EUR")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def schema_of(*properties: Any, **more: Any) -> str:
    return json.dumps({"type": "object", "properties": dict(properties), **more})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "takes a JSON Schema that is an object"),
        ('{"type": "string"}', "takes type object with properties, and nothing else on top; its type is string"),
        (
            schema_of(("a", {"type": "object", "unevaluatedProperties": False})),
            "a: `unevaluatedProperties` is not supported: write",
        ),
        (schema_of(("a", {"type": "integer", "minimum": "3"})), "a: minimum is '3': takes a number"),
    ],
)
def test_a_schema_that_cannot_be_is_told_by_its_field(
    folder: Path, refused: Refused, content: str, reason: str
) -> None:
    (folder / "s.json").write_text(content)
    line = refused("extract", "--input", "a.txt", "--schema", "s.json")
    assert line.startswith("millrace: --schema s.json: ")
    assert reason in line
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "--schema is missing"),
        (["--schema", "none.json"], "--schema none.json: no such file"),
        (["--schema", "no_such_module:Invoice"], "no_such_module cannot be imported: ModuleNotFoundError"),
        (["--schema", "broken_module:Invoice"], "broken_module cannot be imported: ZeroDivisionError"),
        (["--schema", "leaving_module:Invoice"], "leaving_module cannot be imported: SystemExit: 3"),
        (["--schema", "invoice_module.py:Invoice"], "a module is named without its .py: invoice_module"),
        (["--schema", "sub/invoice.py:Invoice"], "no such file; takes a file of a JSON Schema, or a class as module"),
        (["--schema", "schemas"], "--schema schemas: is a folder; takes a file"),
        (["--schema", "invoice_module:Invoices"], "invoice_module has no Invoices: did you mean Invoice?"),
        (["--schema", "json:Nothing"], "json has no Nothing: it is /"),
        (["--schema", "invoice_module:NUMBER"], "7: takes a dataclass"),
        (["--schema", "s.json", "--examples", "e.jsonl"], "--examples e.jsonl: line 2: takes an object of"),
        (["--schema", "s.json", "--examples", "bad.jsonl"], "--examples bad.jsonl: example: Row has no field 'sum'"),
        (["--schema", "s.json", "--examples", "odd.jsonl"], "--examples odd.jsonl: "),
        (["--schema", "s.json", "--template", "t.txt"], "--template t.txt: takes text"),
        (["--schema", "s.json", "--n", "3"], "--n: millrace extract does not take it; run takes it"),
        (["--schema", "s.json", "--prompt_column", "x"], "does not take it; run, score and embed take it"),
        (["--schema", "s.json", "--labels", "a,b"], "--labels: millrace extract does not take it; classify takes it"),
    ],
)
def test_flags_that_cannot_be_are_told(folder: Path, refused: Refused, flags: list[str], reason: str) -> None:
    (folder / "invoice_module.py").write_text(MODULE)
    (folder / "invoice_parts.py").write_text(PARTS)
    (folder / "broken_module.py").write_text("1 / 0")
    (folder / "e.jsonl").write_text('{"text": "a", "answer": {"total": 1}}\n{"text": "b"}\n')
    (folder / "bad.jsonl").write_text('{"text": "a", "answer": {"sum": 1}}\n')
    (folder / "odd.jsonl").write_text('{"text": "a", "answer": 5}\n')
    (folder / "leaving_module.py").write_text("raise SystemExit(3)")
    (folder / "schemas").mkdir()
    (folder / "t.txt").write_text("no place")
    assert reason in refused("extract", "--input", "a.txt", "--backend", "fake", *flags)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "--labels is missing"),
        (["--labels", "a,a"], "--labels a,a: 'a' is there twice"),
        (["--labels", "a,,b"], "takes no empty ones"),
        (["--labels", "a"], "--labels a: takes two or more"),
        (["--labels", "l.json"], "--labels l.json: takes a list of strings"),
        (["--labels", "none.json"], "--labels none.json: no such file; takes labels with commas"),
        (["--labels", "l.txt"], "--labels l.txt: takes labels with commas between them, or a file of JSON"),
        (["--labels", '["a", "b"]'], "takes labels with commas between them, or a file of JSON named"),
        (["--labels", "a,b", "--template", "felds.txt"], "{felds} is no place in it: did you mean {fields}?"),
        (["--labels", "a,b", "--examples", "odd.jsonl"], "--examples odd.jsonl: example: 5: takes a label"),
        (["--labels", "a,b", "--threshold", "0.4"], "--threshold needs --multiple"),
        (["--labels", "a,b", "--threshold", "1.4", "--multiple"], "--threshold 1.4: takes more than 0"),
        (["--labels", "a,b", "--examples", "e.jsonl"], "--examples e.jsonl: example: labels ['c']"),
        (
            ["--labels", "a,b", "--temperature", "1"],
            "--temperature: millrace classify does not take it; run and extract take it",
        ),
        (["--labels", "a,b", "--schema", "s.json"], "--schema: millrace classify does not take it; extract takes it"),
        (["--labels", "a,b", "--schema=s.json"], "--schema: millrace classify does not take it; extract takes it"),
    ],
)
def test_labels_that_cannot_be_are_told(folder: Path, refused: Refused, flags: list[str], reason: str) -> None:
    (folder / "l.json").write_text('["a", 2]')
    (folder / "l.txt").write_text("a\nb\n")
    (folder / "e.jsonl").write_text('{"text": "a", "answer": "c"}')
    (folder / "odd.jsonl").write_text('{"text": "a", "answer": 5}')
    (folder / "felds.txt").write_text("{felds}: {document}")
    assert reason in refused("classify", "--input", "a.txt", "--backend", "fake", *flags)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("json:JSONDecoder", "'JSONDecoder': takes a dataclass"),
        ("pydantic:BaseModel", "BaseModel has no fields"),
        ("millrace.transforms.elements.completions:Usage", "'Usage': takes a dataclass"),
    ],
)
def test_what_workers_have_goes_to_them_by_its_name(folder: Path, refused: Refused, address: str, reason: str) -> None:
    assert folder == Path.cwd()
    before = cloudpickle.list_registry_pickle_by_value()
    told = refused("extract", "--input", "a.txt", "--backend", "fake", "--schema", address)
    assert told.startswith(f"millrace: --schema {address}: {reason}")
    parsed("extract", "--schema", "millrace.transforms.typed.details:SpanAt")
    assert cloudpickle.list_registry_pickle_by_value() == before


def parsed(task: Any, *flags: str) -> JobOptions:
    return parse(["--input", "a.txt", *flags], task)


def test_a_schema_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "s.json").write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    asked = parsed("extract", "--schema", "s.json").settings
    assert isinstance(asked, ExtractSettings)
    assert asked.rows == SCHEMA


def test_what_is_given_is_what_is_asked(folder: Path) -> None:
    (folder / "e.jsonl").write_text(
        '{"text": "a 1", "answer": {"total": 1}}\n\n{"document": "b", "answer": {"total": 2}}\n'
    )
    (folder / "chat.json").write_text('[{"role": "user", "content": "{document}"}]')
    (folder / "l.json").write_text('{"good": "they like it", "bad": "they do not"}')
    options = parsed("extract", "--schema", "s.json", "--examples", "e.jsonl", "--text_column", "body")
    asked = options.settings
    assert isinstance(asked, ExtractSettings)
    assert (asked.rows, asked.template) == (SCHEMA, DEFAULT_TEMPLATE)
    assert asked.examples == [("a 1", {"total": 1}), ("b", {"total": 2})]
    assert (options.sampling.max_tokens, options.prompt_column, options.row_params) == (MAX_TOKENS, "body", False)
    for given, most in (((), MAX_TOKENS), (("--max_tokens", "9"), 9), (("--max_tokens", "128"), 128)):
        assert transform_of(parsed("extract", "--schema", "s.json", *given))._params.max_tokens == most
    labels = parsed("classify", "--labels", "good, bad", "--template", "chat.json").settings
    assert isinstance(labels, ClassifySettings)
    assert (labels.labels, labels.template) == (["good", "bad"], [{"role": "user", "content": "{document}"}])
    several = parsed("classify", "--labels", "l.json", "--multiple", "--threshold", "0.25").settings
    assert isinstance(several, ClassifySettings)
    assert (several.labels, several.multiple, several.threshold) == (
        {"good": "they like it", "bad": "they do not"},
        *(True, 0.25),
    )


def test_a_class_goes_to_workers_that_cannot_import_it(folder: Path) -> None:
    (folder / "sent_module.py").write_text(MODULE.replace("invoice_parts", "sent_parts"))
    (folder / "sent_parts.py").write_text(PARTS)
    assert isinstance(parsed("extract", "--schema", "sent_module:Outer.Inner").settings, ExtractSettings)
    asked = parsed("extract", "--schema", "sent_module:Invoice").settings
    assert isinstance(asked, ExtractSettings)
    worker = """
import sys
from apache_beam.internal import pickler
from millrace.transforms.typed.values import value_of
record = pickler.loads(sys.stdin.buffer.read())
made = value_of(record, {"currency": "EUR", "lines": [{"item": "lamp"}]})
print(made.lines[0].item, made.currency.name)
try:
    value_of(record, {"currency": "EUR", "lines": []})
except Exception as error:
    print(type(error).__name__, error)
"""
    (folder / "elsewhere").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", worker],
        input=pickler.dumps(record_of(asked.rows)),
        cwd=folder / "elsewhere",
        capture_output=True,
        check=False,
        timeout=240,
    )
    shown = ended.stdout.decode().splitlines()
    assert shown[0] == "lamp EUR", ended.stderr.decode()
    assert shown[1].startswith("AnswerRejected Invoice does not take the answer")
    assert "no lines" in shown[1]
    assert value_of(record_of(asked.rows), {"currency": "EUR", "lines": [{"item": "lamp"}]}).lines[0].item == "lamp"

"""The flags of tasks on documents that name files or classes: a schema or class, labels, examples, a template.

A class comes from its module as Python imports it, the current folder first. It goes to workers by value, with what
its module imports from that folder, so it need not be installed there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import sysconfig
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from apache_beam.internal.cloudpickle import cloudpickle

from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.conversion import did_you_mean, nearest, shown
from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.classify import Classify
from millrace.transforms.extract import Extract
from millrace.transforms.tasks import ClassifySettings, ExtractSettings
from millrace.transforms.typed.checking import check_supported
from millrace.transforms.typed.describe import record_of
from millrace.transforms.typed.document_template import Template, checked_template

from .file_flags import read_text

_OF_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_OURS = "millrace"
_NAMED = re.compile(r"^(labels|threshold|template)(=[^:]*)?: ")
"""How an error begins that names the setting; the flag is named before it."""
_DOCUMENT, _ANSWER = ("text", "document", "prompt"), "answer"


def add_extraction(group: Any) -> None:
    """`--schema`, `--examples` and `--template`."""
    group.add_argument(
        "--schema",
        metavar="FILE|MODULE:CLASS",
        help="What to extract: a file with a JSON Schema of an object, or a dataclass, NamedTuple or pydantic model in "
        "a module.",
    )
    _add_prompt_files(group, "a row of the schema")


def add_classification(group: Any) -> None:
    """`--labels`, `--examples` and `--template`."""
    group.add_argument(
        "--labels",
        metavar="LABEL,LABEL,…",
        help="The labels, separated by commas; or a .json file with a list of labels, or with an object that maps each "
        "label to its meaning.",
    )
    _add_prompt_files(group, "the label, or with --multiple a list of labels")


def _add_prompt_files(group: Any, answer: str) -> None:
    """What may be put before a document."""
    group.add_argument(
        "--examples",
        metavar="FILE",
        help="JSONL file of examples that the prompt shows before each document: objects with `text` and "
        f"`{_ANSWER}`, {answer}.",
    )
    group.add_argument(
        "--template",
        metavar="FILE",
        help="File of the prompt: text with {document}, {fields} and {examples} in it, or a .json file of chat "
        "messages.",
    )


def read_extraction(known: argparse.Namespace, others: dict[str, Any]) -> ExtractSettings:
    """The settings that flags say. Raises ConfigError, one sentence that names the flag and its value."""
    if not known.schema:
        raise ConfigError("--schema is missing: takes a file with a JSON Schema, or module:Class")
    rows = _rows_of(known.schema)
    settings = ExtractSettings(rows=rows, **others, **_prompt_files(known))
    _told(f"--schema {known.schema}", lambda: check_supported(record_of(rows)))
    if settings.examples:
        _told(f"--examples {known.examples}", partial(Extract, rows, EMBEDDED_MODEL, examples=settings.examples))
    return settings


def read_classification(known: argparse.Namespace, others: dict[str, Any]) -> ClassifySettings:
    """The settings that flags say. Raises ConfigError, one sentence that names the flag and its value."""
    if not known.labels:
        raise ConfigError("--labels is missing: takes labels with commas between them, or a .json file")
    if known.threshold is not None and not known.multiple:
        raise ConfigError("--threshold needs --multiple: without it the likeliest label alone holds")
    settings = ClassifySettings(labels=_labels_of(known.labels), **others, **_prompt_files(known))
    make = partial(Classify, settings.labels, EMBEDDED_MODEL, multiple=settings.multiple)
    _told(f"--labels {known.labels}", make)
    if settings.threshold is not None:
        _told(f"--threshold {shown(known.threshold)}", partial(make, threshold=settings.threshold))
    if settings.examples:
        _told(f"--examples {known.examples}", partial(make, examples=settings.examples))
    return settings


def _prompt_files(known: argparse.Namespace) -> dict[str, Any]:
    """Examples and template, as far as they are given."""
    examples = {"examples": _examples_of(known.examples)} if known.examples else {}
    return examples | ({"template": _template_of(known.template)} if known.template else {})


def _labels_of(given: str) -> list[str] | dict[str, str]:
    is_list = given.endswith(".txt") and Path(given).is_file()
    if is_list or given.lstrip().startswith(("[", "{")):
        raise ConfigError(f"--labels {given}: takes labels with commas between them, or a file of JSON named ….json")
    if not given.endswith(".json"):
        return [label.strip() for label in given.split(",")]
    text = read_text("--labels", given, "; takes labels with commas between them, or a .json file of them")
    found = _json(text, f"--labels {given}")
    said = found.values() if isinstance(found, dict) else found
    if not isinstance(found, list | dict) or not all(isinstance(each, str) for each in said):
        raise ConfigError(f"--labels {given}: takes a list of strings, or an object of strings")
    return found


def _told(flag: str, check: Callable[[], Any]) -> Any:
    """Run a check and return its result. Its errors name the flag."""
    try:
        return check()
    except ConfigError as error:
        raise ConfigError(f"{flag}: {_NAMED.sub('', str(error))}") from None
    except (UnicodeError, RecursionError) as error:  # of a prompt with half a character, of examples that are too deep
        raise ConfigError(f"{flag}: {type(error).__name__}: {error}") from None


def _rows_of(schema: str) -> Any:
    if _OF_MODULE.fullmatch(schema) and not Path(schema).exists():
        return _class_of(schema)
    found = _json(
        read_text("--schema", schema, "; takes a file of a JSON Schema, or a class as module:Class"),
        f"--schema {schema}",
    )
    if not isinstance(found, dict):
        raise ConfigError(f"--schema {schema}: takes a JSON Schema that is an object")
    return found


def _class_of(address: str) -> Any:
    name, _, path = address.partition(":")
    before = set(sys.modules)
    module = _imported(name, address)
    for each in (module, *(sys.modules[new] for new in sys.modules.keys() - before)):
        if _is_here(each) or (each is module and not _is_installed(each)):
            cloudpickle.register_pickle_by_value(each)
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError:
        where = f"it is {getattr(module, '__file__', None) or 'built in'}"
        hint = did_you_mean(nearest(path, vars(module)), where)
        raise ConfigError(f"--schema {address}: {name} has no {path}{hint}") from None


def _imported(name: str, address: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = f"; a module is named without its .py: {name[:-3]}" if name.endswith(".py") else ""
        raise ConfigError(
            f"--schema {address}: {name} cannot be imported: {type(error).__name__}: {error}{hint}; takes MODULE:CLASS"
        ) from None
    finally:
        sys.path.remove(here)


def _is_here(module: ModuleType) -> bool:
    """Whether the module lies in the current folder, and is not installed."""
    return _file(module).is_relative_to(Path.cwd()) and not _is_installed(module)


def _is_installed(module: ModuleType) -> bool:
    """Whether workers have it too: Python's own, a package's, or millrace's wherever that is."""
    if module.__name__.partition(".")[0] == _OURS or getattr(module, "__file__", None) is None:
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(_file(module).is_relative_to(place) for place in places)


def _file(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "/")


def _examples_of(path: str) -> list[tuple[str, Any]]:
    """Documents with their answers. Raises ConfigError that names the line."""
    text = read_text("--examples", path, "; takes a JSONL file of examples")
    lines = text.split("\n")  # a string may have other ends of lines in it
    return [_example(line, f"--examples {path}: line {at}") for at, line in enumerate(lines, 1) if line.strip()]


def _example(line: str, where: str) -> tuple[str, Any]:
    row = _json(line, where)
    texts = [row[name] for name in _DOCUMENT if isinstance(row.get(name), str)] if isinstance(row, dict) else []
    if len(texts) != 1 or _ANSWER not in row:
        raise ConfigError(f"{where}: takes an object of `text` and `{_ANSWER}`")
    return texts[0], row[_ANSWER]


def _template_of(path: str) -> Template:
    hint = "; takes a file of text with {document} in it, or of chat messages, named ….json"
    text = read_text("--template", path, hint)
    try:
        return checked_template(json.loads(text) if path.endswith(".json") else text)
    except (ConfigError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"--template {path}: {_NAMED.sub('', str(error))}") from None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from None

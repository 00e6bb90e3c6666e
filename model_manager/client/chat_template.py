"""A model's chat template: messages in, the text that the model was trained to see out.

Renders as transformers' `apply_chat_template` does
(https://huggingface.co/docs/transformers/en/chat_templating). Knows text, not tokens. Templates come with the model, so
they are not trusted: they run in Jinja's immutable sandbox, within limits (template_limits.py), and see plain values
only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from ..wire.chat_messages import parse_messages
from ..wire.errors import InvalidRequest, ModelUnsupported
from .template_limits import LimitedEnvironment, LimitExceeded

_DEFAULT = "default"
_SHOWN = 200
"""Most characters of a template's own error, which may name all that it was given."""


class ChatTemplate:
    """A compiled template; raises ModelUnsupported if it is no Jinja template."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        name: str = "the model's chat template",
    ) -> None:
        """`variables` are seen by the template (bos_token and the like); `now` is the clock behind `strftime_now`;
        `name` is how errors name the template.
        """
        self._variables = dict(variables)
        self._name = name
        self._environment = _environment(now)
        try:
            self._template = self._environment.from_string(source)
        except (TemplateSyntaxError, SyntaxError, RecursionError, MemoryError) as error:
            raise ModelUnsupported(f"the model's chat template does not compile: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, ending where the assistant's answer begins.

        Raises InvalidRequest for what are no messages, and with the template's own words where it rejects them.
        """
        conversation = parse_messages(messages)
        try:
            with self._environment.limited():
                return self._template.render(messages=conversation, add_generation_prompt=True, **self._variables)
        except LimitExceeded as limit:
            raise InvalidRequest(f"messages: {self._name} exceeds a limit with them: {limit}") from None
        except MemoryError:
            raise InvalidRequest(f"messages: {self._name} takes more memory with them than there is") from None
        except Exception as error:  # filters raise what they meet: AttributeError of a text that has no items, ...
            raise InvalidRequest(f"messages: the chat template rejects them: {str(error)[:_SHOWN]}") from None


def find_template(folder: Path, declared: object) -> str | None:
    """The template's source: the file chat_template.jinja, else what the settings declare (text, or named templates).

    Raises ModelUnsupported for a declaration of another kind.
    """
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(declared, list) and all(isinstance(named, Mapping) for named in declared):
        declared = {named.get("name"): named.get("template") for named in declared}.get(_DEFAULT)
    if declared is not None and not isinstance(declared, str):
        raise ModelUnsupported(f"{folder}: its chat_template is neither text nor a list of named templates")
    return declared


# ── what templates may use ───────────────────────────────────────────────────────────────────────────────────────────


def _environment(now: Callable[[], datetime]) -> LimitedEnvironment:
    environment = LimitedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    environment.globals["namespace"] = _PublicNamespace
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _PublicNamespace(Namespace):
    """A namespace that a template cannot give names which Python treats specially."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **attributes):
            _check_public(name)
        Namespace.__init__(self, *rest, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace takes no name with a leading underscore, got {name!r}")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

"""Chat templates of models, and templates of rows: a text within the limits, or an error of the product's.

An input is JSON: `template`, and `messages` for a chat template or `row` for a row's.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

from millrace.model_manager.client.chat_template import ChatTemplate
from millrace.model_manager.client.template_limits import MOST_CHARACTERS
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, ModelUnsupported
from millrace.transforms.elements.prompt_template import columns_of, filled
from tests.fuzz.target import Defect, Target
from tests.fuzz.trees import ODD, mutated, spliced

_PIECES = (
    "{{|}}|{%|%}|{#|#}|{%- |-%}|{% for m in messages %}|{% endfor %}|{% if messages %}|{% endif %}|{% else %}"
    "|{{ messages[0]['content'] }}|{{ messages }}|{{ m }}|{% set ns = namespace(a=1) %}|{% set ns.a = ns.a * 9 %}"
    "|{% set x = 'a' * 999 %}|{% set x = x ~ x %}|{% set x = [x, x] %}|{{ x|tojson }}|{{ x|join(',') }}|{{ x|length }}"
    "|{% macro f(a) %}|{% endmacro %}|{{ f(1) }}|{% call f(1) %}|{% endcall %}|{% filter upper %}|{% endfilter %}"
    "|{{ range(99999)|list }}|{{ 'x'.format(1) }}|{{ '%099999d' % 1 }}|{{ 9 ** 9 ** 9 }}|{{ x.__class__ }}"
    "|{{ cycler('a','b').next() }}|{{ joiner() }}|{{ dict(a=1) }}|{{ x|attr('a') }}|{% raw %}|{% endraw %}"
    "|{% generation %}|{% endgeneration %}|{% break %}|{% continue %}|{{ raise_exception('no') }}"
    "|{{ strftime_now('%Y') }}|{{ loop.index }}|{{ m.content|trim|replace('a','bb')|indent(9999) }}|{{ [1]|sum }}"
    "|{% for a in range(9999) %}|{% for a in m recursive %}|{{ loop(m) }}|{% block b %}|{% endblock %}|{{ self.b() }}"
    "|{% include 'x' %}|{% import 'x' as y %}|{% extends 'x' %}|{{ x|map('upper')|list }}|{{ x|groupby('a') }}"
    "|{{ x|batch(2)|list }}|{{ x|slice(3)|list }}|{{ x|xmlattr }}|{{ x|urlize }}|{{ x|wordwrap(1) }}|{{ x|sort }}"
    "|{{ x|unique|list }}|{{ x|selectattr('a')|list }}|{{ x|default('y') }}|{{ x|round(9) }}|{{ x|int }}|{{ x[::-1] }}"
    "|{{ x.split('a') }}|{{ x.replace('', 'aaaa') }}|{{ x.join(x) }}|{{ x.center(9) }}|{{ bos_token }}|{{ x|random }}"
    "|{{ x|format(1) }}|{{ x|string|list }}|{{ x.items() }}|{{ x|dictsort }}|{{ (x,x,x) }}|{{ x in x }}"
    "|{{ x is sameas x }}"
).split("|{")  # fmt: skip
_CHAT = [
    _PIECES[0],
    *("{" + piece for piece in _PIECES[1:]),
    " ",
    "\n",
    "'",
    '"',
    "(",
    ")",
    "[",
    "]",
    "|",
    "~",
    "+",
    "*",
    "9",
]
_ROW = ["{", "}", "{{", "}}", "{a}", "{b}", "{a!r}", "{a:9}", "{a.b}", "{0}", "{}", "[", "]", "é", "\0"]
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(data: bytes) -> None:
    """Render it."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict) or not isinstance(template := given.get("template"), str):
        return
    if "row" in given:
        _fill(template, given["row"])
    else:
        _render(template, given.get("messages"))


def _fill(template: str, row: Any) -> None:
    if not isinstance(row, dict):
        return
    try:
        columns_of(template)
    except ConfigError:
        return
    try:
        _check_text(filled(template, row))
    except InvalidRequest:
        return


def _render(template: str, messages: Any) -> None:
    try:
        made = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}, now=lambda: _NOW)
        _check_text(made.render(messages))
    except (ModelUnsupported, InvalidRequest):
        return


def _check_text(text: Any) -> None:
    if not isinstance(text, str) or len(text) > 2 * MOST_CHARACTERS:
        raise Defect(f"rendered as {type(text).__name__} of {len(text)}")


def mutate(data: bytes, source: random.Random) -> bytes:
    """Put a piece in, take one out; or change the messages or the row."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = {}
    if not isinstance(given, dict) or not isinstance(given.get("template"), str):
        given = json.loads(source.choice(_seeds()))
    other = "row" if "row" in given else "messages"
    if source.random() < 0.75:
        given["template"] = spliced(given["template"], source, _ROW if other == "row" else _CHAT)
    else:
        given[other] = mutated(given.get(other), source, ODD)
    return json.dumps(given).encode("utf-8", "surrogatepass")


def _seeds() -> list[bytes]:
    talk = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "user", "content": "é & <b>"},
    ]
    templates = [
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{{ '[' ~ ns.n ~ ']' }}{% if m.content is string %}{{ m.content|trim }}{% else %}{% for c in m.content %}"
        "{{ c.text }}{% endfor %}{% endif %}{% endfor %}",
        "{% macro tool(t) %}{{ t.function.name }}({{ t.function.arguments|tojson(indent=2) }}){% endmacro %}"
        "{% for m in messages %}{% for t in m.tool_calls or [] %}{{ tool(t) }}{% endfor %}{% endfor %}",
        "{% if messages[0].role == 'user' %}{{ raise_exception('no system message') }}{% endif %}{{ messages|length }}",
    ]
    made: list[dict[str, Any]] = [{"template": each, "messages": talk} for each in templates]
    made += [{"template": each, "messages": talk[:2]} for each in _CHAT if len(each) > 4]
    row = {"a": "x", "b": {"c": [1, None]}, "text": "t"}
    made += [{"template": each, "row": row} for each in ("Say {a}: {b}", "{{{a}}}", "{a", "{a!r}")]
    return [json.dumps(each).encode() for each in made]


TARGET = Target(run, mutate, _seeds(), seconds=10, memory=2048)

"""A model's chat template: where it is found, what it renders, and what it may not do."""

from datetime import datetime
from pathlib import Path

import pytest

from millrace.model_manager.client import template_limits
from millrace.model_manager.client.chat_template import ChatTemplate
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.wire.errors import InvalidRequest, ModelUnsupported
from tests.model_manager.client.tokenizer_pairs import CHAT, USER, Pair, encode_chat
from tests.model_manager.client.tokenizers_made_here import byte_level_bpe, save

ELABORATE = """
{%- macro turn(role, text) -%}
<|{{ role }}|>
{{ text | trim | replace('<', '&lt;') }}
{%- endmacro -%}
{%- set ns = namespace(system='You help.', last=-1) -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set ns.system = messages[0].content.strip() -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set rest = messages -%}
{%- endif -%}
{{- bos_token ~ turn('system', ns.system) }}
{% for message in rest if message.content is string -%}
    {%- if loop.first and tools is defined and tools %}tools{% endif -%}
    {%- set ns.last = loop.index0 -%}
    {%- if loop.index0 > 2 %}{% continue %}{% endif -%}
    {{- turn(message.role, message['content'].split('</think>')[-1]) }}{{ eos_token if message.role == 'assistant' }}
{%- endfor %}
  {# a comment #}
{%- if pad_token is defined %}{{ pad_token }}{% endif -%}
{%- if add_generation_prompt %}
{{ {'role': 'assistant', 'é': '<'} | tojson }} {{ ns.last }}
{%- endif %}
"""


def test_elaborate_templates_render_as_in_transformers(tmp_path: Path) -> None:
    pair = Pair(save(byte_level_bpe(), tmp_path, chat_template=ELABORATE))
    for messages in (CHAT, CHAT[1:], USER):
        pair.agree_on_chat(messages)


def test_a_template_file_wins_over_the_settings(tmp_path: Path) -> None:
    save(byte_level_bpe(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file:{{ messages[0].content }}", encoding="utf-8")
    pair = Pair(tmp_path)
    pair.agree_on_chat(USER)
    assert pair.ours.decode(encode_chat(pair.ours, USER)) == "file:Hi"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes:{{ messages[0].content }}"}]
    pair = Pair(save(byte_level_bpe(), tmp_path, chat_template=named))
    pair.agree_on_chat(USER)
    assert pair.ours.decode(encode_chat(pair.ours, USER)) == "yes:Hi"


def test_the_older_template_file_is_the_last_resort(tmp_path: Path) -> None:
    save(byte_level_bpe(), tmp_path, chat_template=None)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json:{{ messages[0].content }}"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(encode_chat(tokenizer, USER)) == "json:Hi"


def test_without_a_template_messages_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level_bpe(), tmp_path, chat_template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        encode_chat(tokenizer, USER)


def _render(source: str, content: str = "<b> & 'é'") -> str:
    now = datetime(2024, 7, 26)
    return ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: now).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<b> & \'é\'"}]'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=True) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{% generation %}{{ bos_token }}{% endgeneration %}", "<s>"),
        ("{{ missing }}|{{ tools is defined }}|{{ add_generation_prompt }}", "|False|True"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
    ],
)
def test_templates_have_what_transformers_gives_them(source: str, text: str) -> None:
    assert _render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ 'a'.encode().ljust(9) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x.y }}",
        "{{ raise_exception('no') }}",
        "{{ 'a' | dictsort }}",
    ],
)
def test_what_a_template_may_not_do_ends_that_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template rejects"):
        _render(source)


_AGAIN = "{{% set ns = namespace(x='aaaa') %}}{{% for _ in range(60) %}}{}{{% endfor %}}{{{{ ns.x }}}}"
_NESTED = "{% set ns = namespace(x='a') %}{% for _ in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "seconds"),
        ("{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}", "seconds"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}", "seconds"),
        ("{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}", "seconds"),
        ("{% for a in range(99999) %}{% for b in range(99) %}" + "x" * 999 + "{% endfor %}{% endfor %}", "characters"),
        (_AGAIN.format("{% set ns.x = ns.x ~ ns.x %}"), "characters"),
        (_AGAIN.format("{% set ns.x = ns.x + ns.x %}"), "characters"),
        (_AGAIN.format("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"), "characters"),
        (_NESTED + "{{ ns.x }}", "characters"),
        (_NESTED + "{{ ns.x | tojson }}", "characters"),
        (_NESTED + "{{ 'a' ~ ns.x }}", "characters"),
        ("{{ 'a' * 10**10 }}", "characters"),
        ("{{ 9 ** (9 ** 9) }}", "characters"),
        ("{{ '%9999999999d' % 1 }}{{ '%*d' % (10**10, 1) }}", "characters"),
        ("{{ '%*d' % (9999999999, 1) }}", "characters"),
        ("{{ '{:{}}'.format(1, 9999999999) }}", "characters"),
        ("{{ 'a'.ljust(9999999999) }}", "characters"),
        ("{{ 'a' | center(9999999999) }}", "characters"),
        ("{{ range(99999) | map('center', 99999) | list }}", "characters"),
        ("{{ range(99999) | join('a' * 99999) }}", "characters"),
        ("{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}", "characters"),
        ("{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}", "characters"),
        ("{{ ('\n' * 99999) | indent(99999) }}", "characters"),
        ("{{ ('%(a)99999d' * 99999) % {'a': 1} }}", "characters"),
        ("{% set s = 'a' * 99999 %}{{ ('{0}' * 99999).format(s) }}", "characters"),
        ("{{ '{0:9{a[0]}}'.format(1, a=['99999999']) }}", "characters"),
        ("{% set a = 'a' * 9999999 %}{{ (" + "~".join("a" * 99) + ") | length }}", "characters"),
        ("{% set a = 'a' * 9999999 %}{{ (" + "+".join("a" * 66) + ") | length }}", "characters"),
        ("{% set s = 'a\n' * 9999999 %}{{ s.splitlines() | length }}", "characters"),
        ("{{ ('a' * 9999999) | list | length }}", "characters"),
        ("{% set a = 'a' * 99999 %}{{ a.strip(a) }}", "characters"),
    ],
)
def test_a_template_that_takes_or_makes_too_much_ends_that_request(
    source: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "seconds":
        monkeypatch.setattr(template_limits, "MOST_SECONDS", 0.05)
    with pytest.raises(
        InvalidRequest, match=f"the model's chat template exceeds a limit with them: at most .* {limit}"
    ):
        _render(source)


@pytest.mark.parametrize("chain", ["+".join("a" * 3000), " or ".join(["'a' == 'b'"] * 3000)])
def test_an_expression_that_no_interpreter_takes_is_a_model_that_is_not_supported(chain: str) -> None:
    with pytest.raises(ModelUnsupported, match="chat template does not compile"):
        ChatTemplate("{{ " + chain + " }}", {})

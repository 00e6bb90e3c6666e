"""Messages in rows, as elements and in a chat template."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.client.chat_template import ChatTemplate
from millrace.model_manager.wire.chat_messages import parse_messages
from millrace.transforms.elements.prompts import as_prompt

_PARTS = st.lists(st.text().map(lambda text: {"type": "text", "text": text}))
_CONTENT = st.one_of(st.text(), _PARTS)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.text(min_size=1), "content": _CONTENT}, optional={"name": st.none()}), min_size=1
)


@given(_MESSAGES)
def test_rows_elements_and_templates_read_the_same(messages: list[dict[str, Any]]) -> None:
    plain = parse_messages(messages)
    assert parse_messages(plain) == plain, "who parses what was parsed changes nothing"
    assert as_prompt(messages).messages == plain
    assert as_prompt({"messages": messages}).messages == plain
    shown = ChatTemplate("{% for each in messages %}{{ each | tojson }};{% endfor %}", {})
    assert shown.render(messages) == shown.render(plain)

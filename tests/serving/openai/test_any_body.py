"""No body makes the server fail: whatever a field holds, the answer is one, or says which field is wrong."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.model_manager.wire.openai_parameters import NO_EFFECT, PARAMETERS, RIDE_ALONG
from millrace.serving.openai.bodies import Body, ChatBody, CompletionBody, DetokenizeBody, EmbeddingBody, TokenizeBody
from tests.serving.servers import MODEL, Server

BODIES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "a", "max_tokens": 2}),
    "/v1/chat/completions": (ChatBody, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
    "/v1/embeddings": (EmbeddingBody, {"input": "a"}),
    "/tokenize": (TokenizeBody, {"prompt": "a"}),
    "/detokenize": (DetokenizeBody, {"tokens": [5]}),
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
WORDS = st.sampled_from(
    ["user", "type", "function", "name", "json_schema", "schema", "$ref", "#/$defs/a", "required", MODEL]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | TEXT | WORDS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | TEXT, inner, max_size=4), max_leaves=12
)
FIELDS = {
    path: sorted({*kind.__struct_fields__, *PARAMETERS, *RIDE_ALONG, *NO_EFFECT}) for path, (kind, _) in BODIES.items()
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A path, and a body that is right but for some fields."""
    path = draw(st.sampled_from(sorted(BODIES)))
    return path, BODIES[path][1] | draw(st.dictionaries(st.sampled_from(FIELDS[path]), VALUES, max_size=3))


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests())
def test_no_body_makes_the_server_fail(server: Server, asked: tuple[str, dict[str, Any]]) -> None:
    path, body = asked
    answer = httpx.post(f"{server.url}{path}", content=msgspec.json.encode(body), timeout=60)
    assert answer.status_code in (200, 400, 404), (body, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]

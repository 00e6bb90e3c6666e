"""`/v1/batches`, asked by OpenAI's own client: real jobs answer, as the endpoint itself would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serving.batches.batch_files import CHAT, COMPLETIONS, EMBEDDINGS, batch, created, ended, line, rows_of
from tests.serving.servers import MODEL, Server, fake_server

SAID: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Which town is it?"}]
TOOL = {"type": "function", "function": {"name": "town", "parameters": {"enum": ["Paris"]}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["aba", "bab"]}}}
LONG_TEXT = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
LONG = {"type": "json_schema", "json_schema": {"name": "a", "schema": LONG_TEXT}}
TOWN = {"type": "function", "function": {"name": "town", "parameters": LONG_TEXT}}
NOTHING = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
CHATS = [
    line("plain", CHAT, messages=SAID, temperature=0, max_tokens=5),
    line("two", CHAT, messages=SAID, temperature=0, max_tokens=5, n=2, logprobs=True, top_logprobs=1),
    line("call", CHAT, messages=SAID, temperature=0, tools=[TOOL], tool_choice="required"),
    line("schema", CHAT, messages=SAID, temperature=0, response_format=SCHEMA),
    line("cut", CHAT, messages=SAID, temperature=0, response_format=LONG, max_tokens=8),
    line("cut call", CHAT, messages=SAID, temperature=0, tools=[TOWN], tool_choice="required", max_tokens=40),
    line("hot", CHAT, messages=SAID, temperature=900),
    line("long", CHAT, messages=[{"role": "user", "content": "word " * 9000}]),
    line("nothing", CHAT, messages=SAID, response_format=NOTHING),
    line("none", CHAT, messages=SAID, max_completion_tokens=0),
]
PARTS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "logprobs": 1}
TEXTS = [
    line("echo", prompt="Once", temperature=0, max_tokens=4, echo=True),
    line("many", prompt=["Once", "Twice"], temperature=0, max_tokens=4, n=2, seed=1),
    line("ids", prompt=[5, 6, 7], temperature=0, max_tokens=4),
    line("default", prompt="Once", temperature=0),
    line("scored", prompt="hi", temperature=0, max_tokens=2, logprobs=1),
    line("scored echo", prompt="hi", temperature=0, max_tokens=2, logprobs=1, echo=True),
    line("scored echoes", prompt=["hi", "x"], temperature=0, max_tokens=2, n=2, seed=1, logprobs=1, echo=True),
    line("scored echo alone", prompt="hi", max_tokens=0, logprobs=1, echo=True),
    line("scored echo alone of ids", prompt=[200, 70], max_tokens=0, n=2, logprobs=1, echo=True),
    line("scored prompt", prompt="hi", temperature=0, max_tokens=2, n=2, seed=1, prompt_logprobs=1),
    line("parts", prompt="x", guided_regex="😀é", **PARTS),
    line("parts behind an echo", prompt="é", guided_regex="😀é", echo=True, **PARTS),
    line("parts before a stop", prompt="x", guided_regex="😀é😀xyz", stop=["😀x"], **PARTS),
    line("streamed", prompt="Once", stream=True),
    line("no token", prompt=[-1], echo=True),
    line("no token either", prompt=[2**40], echo=True),
]
VECTORS = [
    line("one", EMBEDDINGS, input="a"),
    line("two", EMBEDDINGS, input=["a", "b c"]),
    line("base64", EMBEDDINGS, input=[5, 6], encoding_format="base64"),
]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs three batches at once."""
    with fake_server(tmp_path_factory.mktemp("wide") / "rt", "--max_batches", "3", "--linger", "60") as server:
        yield server


@pytest.fixture(scope="module")
def done(wide: Server) -> dict[str, Any]:
    """Three batches that ran at once, by their endpoints."""
    lines = {CHAT: CHATS, COMPLETIONS: TEXTS, EMBEDDINGS: VECTORS}
    ids = {path: created(wide, each, path, metadata={"for": path}) for path, each in lines.items()}
    return {path: ended(wide, batch_id) for path, batch_id in ids.items()}


def interactive(server: Server, asked: dict[str, Any]) -> Any:
    """What the endpoint itself answers, without what differs each time."""
    return stripped(server.post(asked["url"], asked["body"]).json())


def stripped(body: dict[str, Any]) -> Any:
    text = json.dumps({name: value for name, value in body.items() if name not in ("id", "created", "usage")})
    found = json.loads(text)
    for choice in found.get("choices", ()):
        for call in choice.get("message", {}).get("tool_calls") or ():
            call["id"] = ""
    return found


@pytest.mark.parametrize(("path", "lines"), [(CHAT, CHATS[:6]), (COMPLETIONS, TEXTS[:-3]), (EMBEDDINGS, VECTORS)])
def test_a_batch_answers_as_its_endpoint(wide: Server, done: dict[str, Any], path: str, lines: list[Any]) -> None:
    rows = rows_of(wide, done[path].output_file_id)
    assert list(rows) == [each["custom_id"] for each in lines]
    for each in lines:
        row = rows[each["custom_id"]]
        assert (row["response"]["status_code"], row["error"]) == (200, None)
        assert row["id"].startswith("batch_req_")
        assert stripped(row["response"]["body"]) == interactive(wide, each)
        assert row["response"]["body"]["usage"]["total_tokens"] > 0


def test_a_batch_has_log_probabilities_of_text_prompts(wide: Server, done: dict[str, Any]) -> None:
    rows = rows_of(wide, done[COMPLETIONS].output_file_id)
    (alone,) = rows["scored echo alone"]["response"]["body"]["choices"]
    assert (alone["text"], alone["logprobs"]["tokens"]) == ("hi", ["h", "i"])
    assert alone["logprobs"]["text_offset"] == [0, 1]
    (parts,) = rows["parts"]["response"]["body"]["choices"]
    offsets = parts["logprobs"]["text_offset"]
    assert len(offsets) > len(parts["text"])
    assert offsets[:6] == [0, 0, 0, 0, 1, 1]


def test_a_constrained_answer_that_is_cut_is_the_text_so_far(wide: Server, done: dict[str, Any]) -> None:
    rows = rows_of(wide, done[CHAT].output_file_id)
    cut, call = (rows[name]["response"]["body"]["choices"][0] for name in ("cut", "cut call"))
    assert cut["finish_reason"] == call["finish_reason"] == "length"
    assert cut["message"]["content"].startswith('{"')
    assert call["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"')


def test_a_batch_says_what_became_of_it(wide: Server, done: dict[str, Any]) -> None:
    chats = done[CHAT]
    assert (chats.object, chats.endpoint, chats.model, chats.metadata) == ("batch", CHAT, MODEL, {"for": CHAT})
    assert chats.request_counts.to_dict() == {"total": 10, "completed": 6, "failed": 4}
    assert chats.expires_at - chats.created_at == 86400
    assert chats.created_at <= chats.in_progress_at <= chats.finalizing_at <= chats.completed_at
    assert chats.errors is None
    assert chats.usage.total_tokens == chats.usage.input_tokens + chats.usage.output_tokens > 0
    assert wide.client().files.retrieve(chats.output_file_id).purpose == "batch_output"
    assert done[EMBEDDINGS].error_file_id is None
    listed = wide.client().batches.list(limit=2)
    assert {each.id for each in listed} >= {each.id for each in done.values()}
    assert [each.id for each in listed][:1] == [max(each.id for each in done.values())]


def test_a_wrong_body_fails_its_own_request_alone(wide: Server, done: dict[str, Any]) -> None:
    errors = rows_of(wide, done[CHAT].error_file_id)
    assert list(errors) == [each["custom_id"] for each in CHATS[6:]]
    for each in CHATS[6:]:
        response, told = errors[each["custom_id"]]["response"], wide.post(CHAT, each["body"])
        assert response["status_code"] == told.status_code == 400
        error, same = response["body"]["error"], told.json()["error"]
        assert [error[name] for name in ("type", "code", "param")] == [same[name] for name in ("type", "code", "param")]
        assert error["message"].startswith((f"{same['param']}=", f"{same['param']}: ", "the prompt has"))
    streamed, *others = rows_of(wide, done[COMPLETIONS].error_file_id).values()
    assert "stream" in streamed["response"]["body"]["error"]["message"]
    refused = [(each["response"]["status_code"], each["response"]["body"]) for each in others]
    answers = [wide.post(COMPLETIONS, each["body"]) for each in TEXTS[-2:]]
    assert refused == [(400, each.json()) for each in answers]


GOOD = line("a", prompt="Once", max_tokens=1)


@pytest.mark.parametrize(
    ("lines", "code", "number", "param"),
    [
        ([GOOD, "{", GOOD | {"custom_id": "b"}], "invalid_json_line", 2, None),
        ([GOOD, "", "[1]"], "invalid_json_line", 3, None),
        ([GOOD, GOOD], "duplicate_custom_id", 2, "custom_id"),
        ([GOOD | {"custom_id": 7}], "invalid_value", 1, "custom_id"),
        ([{"method": "POST"}], "missing_required_parameter", 1, "custom_id"),
        ([GOOD | {"method": "GET"}], "invalid_value", 1, "method"),
        ([GOOD | {"url": CHAT}], "mismatched_url", 1, "url"),
        ([GOOD | {"body": []}], "invalid_value", 1, "body"),
        ([GOOD | {"body": {"model": "other", "prompt": "a"}}], "model_not_found", 1, "body.model"),
        ([GOOD | {"body": {"prompt": "a"}}], "model_not_found", 1, "body.model"),
        ([" "], "empty_file", None, None),
    ],
)
def test_a_wrong_line_fails_the_batch(
    wide: Server, lines: list[Any], code: str, number: int | None, param: str | None
) -> None:
    failed = ended(wide, created(wide, lines))
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert failed.failed_at is not None
    (problem,) = failed.errors.data
    assert (problem.code, problem.line, problem.param) == (code, number, param)
    assert problem.message


def test_half_a_character_is_told_as_its_endpoint_tells_it(wide: Server) -> None:
    half = json.dumps(line("a", prompt="\ud800"))
    (problem,) = ended(wide, created(wide, [half])).errors.data
    assert problem.code == "invalid_json_line"
    assert "\\ud800 is one half of a character" in problem.message


def test_all_wrong_lines_are_told(wide: Server) -> None:
    failed = ended(wide, created(wide, ["{"] * 5))
    assert [each.line for each in failed.errors.data] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"output_expires_after": {}}, "output_expires_after"),
        ({"input_file_id": "file-none"}, "input_file_id"),
    ],
)
def test_a_batch_that_is_none_is_refused(wide: Server, body: dict[str, Any], param: str) -> None:
    right: dict[str, Any] = {"endpoint": COMPLETIONS, "completion_window": "24h"}
    if body:
        file = wide.client().files.create(file=b"{}", purpose="batch")
        right["input_file_id"] = file.id
    answer = wide.post("/v1/batches", right | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_a_batch_wrote_is_no_input(wide: Server, done: dict[str, Any]) -> None:
    asked = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": done[CHAT].output_file_id}
    assert "batch_output" in wide.post("/v1/batches", asked).json()["error"]["message"]


def test_what_has_ended_cannot_be_cancelled(wide: Server, done: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="is completed"):
        wide.client().batches.cancel(done[CHAT].id)
    with pytest.raises(openai.NotFoundError):
        wide.client().batches.cancel("batch_none")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes batches of up to three prompts, from two keys."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text("one\ntwo\n")
    flags = ("--api_key_file", str(folder / "keys"), "--max_batch_rows", "3")
    with fake_server(folder / "rt", *flags) as server:
        yield server


def test_a_batch_of_too_many_prompts_fails(keyed: Server) -> None:
    lines = [line("a", prompt=["x", "y"]), line("b", prompt=["x", "y"])]
    failed = ended(keyed, created(keyed, lines, key="one"), "one")
    assert [each.code for each in failed.errors.data] == ["too_many_requests"]


def test_one_key_does_not_see_the_batches_of_another(keyed: Server) -> None:
    made = created(keyed, ["{"], key="one")
    assert ended(keyed, made, "one").status == "failed"
    others = keyed.client("two").batches
    assert list(others.list()) == []
    for ask in (others.retrieve, others.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(made)
    file = keyed.client("one").files.create(file=b"{}", purpose="batch")
    with pytest.raises(openai.BadRequestError, match="no such file"):
        others.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    assert batch(keyed, made, "one").id == made

"""Dialects say what their documentation says: requests and answers of documented examples, as golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.model_manager.backends.endpoint.dialects import Dialect, Garbled, ServerAnswer
from millrace.model_manager.backends.endpoint.engine import dialect_of
from millrace.model_manager.wire.endpoint_options import EndpointOptions
from millrace.model_manager.wire.errors import InvalidRequest, ModelUnsupported
from millrace.model_manager.wire.logprobs import LEAST, Logprobs
from millrace.model_manager.wire.request import Output, Request
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.server_options import parse
from millrace.model_manager.wire.server_presets import PRESETS
from tests.model_manager.backends.endpoint_engines import drained, engine_for
from tests.model_manager.backends.stand_in_server import serving

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


NEED_A_GPU = {"aphrodite", "lmdeploy", "mii", "powerinfer", "ray", "sglang", "tgi", "triton", "trtllm"}
"""Presets whose servers do not run here, or only with a model of ours."""


def spoken(model: str, options: dict[str, Any], metadata: Any = None) -> Dialect:
    dialect = dialect_of(model, EndpointOptions.parse({"urls": "http://localhost"} | options))
    if metadata is not None:
        dialect.learn(dialect.probes[-1].route, msgspec.json.encode(metadata))
    return dialect


def asked(fields: dict[str, Any]) -> Request:
    params = SamplingParams.parse(fields["params"])
    others = {name: value for name, value in fields.items() if name != "params"}
    return Request("id", [], params, **others)


def options_of(example: dict[str, Any]) -> dict[str, Any]:
    """What the example's preset gives, and what it says itself."""
    given: dict[str, Any] = example["options"]
    if (preset := example.get("preset")) is None:
        return given
    return parse({"preset": preset, "port": 8000} | given)[1]


def answer_of(example: dict[str, Any]) -> ServerAnswer:
    """What is to be read."""
    return msgspec.convert(example["answer"], ServerAnswer)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_documented_example_is_what_is_sent_and_read(path: Path) -> None:
    example = json.loads(path.read_text(encoding="utf-8"))
    dialect = spoken(example["model"], options_of(example), example.get("metadata"))
    request = asked(example["request"])
    dialect.check(request)
    call = dialect.call(request)
    assert (call.route, json.loads(call.body)) == (example["route"], example["body"])
    answer = dialect.read(request, msgspec.json.encode(example["reply"]), example.get("headers", {}))
    assert answer == answer_of(example)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_server_that_replays_a_documented_example_is_understood(path: Path) -> None:
    example = json.loads(path.read_text(encoding="utf-8"))
    wanted = answer_of(example)
    with serving() as servers:
        server = servers.replay(example)
        with engine_for(server.url, model=example["model"], **options_of(example)) as engine:
            engine.add(asked(example["request"]))
            (output,) = drained(engine).values()
    assert isinstance(output, Output)
    assert (output.text, output.finish_reason, output.stop_reason, output.num_tokens, output.prompt_tokens) == (
        *(wanted.text, wanted.finish_reason, wanted.stop_reason, wanted.num_tokens, wanted.prompt_tokens),
    )
    assert server.seen == [example["body"]]
    assert server.paths[0].endswith(example["route"])


def test_each_preset_that_needs_a_gpu_has_an_example() -> None:
    examples = [json.loads(path.read_text(encoding="utf-8")) for path in GOLDEN]
    assert {each["preset"] for each in examples if "preset" in each} == NEED_A_GPU
    assert set(PRESETS) - NEED_A_GPU == {"vllm", "llama-server", "optimum-nvidia"}  # these run in tests of their own


@pytest.mark.parametrize("dialect", ["mii", "mii-chat", "mii-completions"])
@pytest.mark.parametrize("params", [{"stop": ["."]}, {"seed": 1}, {"min_tokens": 2}, {"logit_bias": {3: 1.0}}])
def test_what_mii_ignores_or_ends_wrongly_is_refused(dialect: str, params: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"^{next(iter(params))}=.*: the dialect {dialect} does not take it"):
        spoken("m", {"dialect": dialect}).check(asked({"text": "a", "params": params}))


def test_messages_over_grpc_are_those_of_tritons_own_client() -> None:
    folder = Path(__file__).parent / "golden"
    name = "kserve-tensorrt-llm.json"
    example, wire = (json.loads((place / name).read_text(encoding="utf-8")) for place in (folder, folder / "grpc"))
    dialect = dialect_of(example["model"], EndpointOptions(urls="grpc://localhost:8001", dialect="kserve"))
    dialect.learn(dialect.probes[-1].route, bytes.fromhex(wire["metadata"]))
    call = dialect.call(asked(example["request"]))
    assert (call.route, call.body.hex()) == (wire["route"], wire["body"])
    for reply in wire["replies"]:
        answer = dialect.read(asked(example["request"]), bytes.fromhex(reply), {})
        assert answer.text == example["answer"]["text"]


@pytest.mark.parametrize(
    "choice",
    [
        {"text": None, "finish_reason": "stop"},
        {"text": "a", "finish_reason": None},
        {"text": "a", "finish_reason": "abort"},
        {},
    ],
)
def test_a_choice_that_is_not_whole_is_no_answer(choice: dict[str, Any]) -> None:
    dialect = spoken("m", {"dialect": "openai-completions"})
    with pytest.raises(Garbled):
        dialect.read(asked({"text": "a", "params": {}}), msgspec.json.encode({"choices": [choice]}), {})


def test_an_answer_to_a_cut_prompt_fails_its_row() -> None:
    body = {"content": "a", "stop": True, "stopped_eos": True, "truncated": True}
    dialect = spoken("m", {"dialect": "llama-completion"})
    with pytest.raises(InvalidRequest, match="--ctx-size"):
        dialect.read(asked({"text": "a", "params": {}}), msgspec.json.encode(body), {})


def test_an_answer_that_a_filter_stopped_fails_its_row() -> None:
    dialect = spoken("m", {})
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "content_filter"}]}
    with pytest.raises(InvalidRequest, match="content filter"):
        dialect.read(asked({"text": "a", "params": {}}), msgspec.json.encode(body), {})


def test_a_model_without_a_text_tensor_is_unsupported() -> None:
    numbers = {"name": "input", "datatype": "FP32", "shape": [1]}
    with pytest.raises(ModelUnsupported, match="has no input text_input"):
        spoken("resnet", {"dialect": "kserve"}, {"inputs": [numbers], "outputs": [numbers]})


def test_a_model_that_has_no_input_for_most_tokens_refuses_another_number_of_them() -> None:
    text = {"name": "prompt", "datatype": "BYTES", "shape": [-1]}
    dialect = spoken("m", {"dialect": "kserve"}, {"inputs": [text], "outputs": [text | {"name": "completion"}]})
    dialect.check(asked({"text": "a", "params": {}}))
    with pytest.raises(InvalidRequest, match="max_tokens: the model m has no input for it"):
        dialect.check(asked({"text": "a", "params": {"max_tokens": 5}}))


WITHOUT_LOGPROBS: list[dict[str, Any]] = [
    *({"dialect": name} for name in ("openai", "openai-completions", "tgi", "mii", "mii-chat", "mii-completions")),
    {"preset": "vllm"},
]


@pytest.mark.parametrize("options", WITHOUT_LOGPROBS, ids=lambda options: next(iter(options.values())))
def test_log_probabilities_are_refused_where_no_server_is_known_to_give_them_with_ids(options: dict[str, Any]) -> None:
    dialect = spoken("m", options_of({"options": options} | options))
    with pytest.raises(InvalidRequest, match=f"^logprobs=2: the dialect {dialect.name} does not take it"):
        dialect.check(asked({"text": "a", "params": {"logprobs": 2}}))


ENTRY = {"id": 7, "token": "a", "logprob": -0.5, "top_logprobs": [{"id": 7, "token": "a", "logprob": -0.5}]}
WITHOUT_NUMBER = {name: value for name, value in ENTRY.items() if name != "logprob"}
OF_OPENAI = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
OF_VLLM = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}


@pytest.mark.parametrize(
    "given",
    [
        *(None, 3, {}, {"content": [OF_OPENAI]}, OF_VLLM),
        *({"content": [ENTRY | {"id": -1}]}, {"content": [WITHOUT_NUMBER]}),
    ],
)
def test_log_probabilities_without_token_ids_fail_their_row(given: Any) -> None:
    dialect = spoken("m", {"dialect": "openai-completions", "extra_parameters": "logprobs"})
    body = {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": given}]}
    with pytest.raises(InvalidRequest, match=r"^logprobs=2: the server's answer has no log-probabilities with"):
        dialect.read(asked({"text": "a", "params": {"logprobs": 2}}), msgspec.json.encode(body), {})
    dialect.read(asked({"text": "a", "params": {}}), msgspec.json.encode(body), {})


@pytest.mark.parametrize(
    "entries",
    [[ENTRY | {"logprob": 0.5}], [ENTRY | {"top_logprobs": []}], [ENTRY] * 18, [ENTRY | {"token": "a" * 513}], []],
    ids=["above 0", "no likeliest", "too many", "too long", "none"],
)
def test_log_probabilities_that_cannot_be_fail_their_row(entries: list[Any]) -> None:
    """Another try would bring the same."""
    body = {"content": "a", "stop": True, "stop_type": "eos", "completion_probabilities": entries}
    dialect = spoken("m", {"dialect": "llama-completion"})
    request = asked({"text": "a", "params": {"logprobs": 2, "max_tokens": 16}})
    with pytest.raises(InvalidRequest, match=r"^logprobs=2: the server's answer has (a|log-)"):
        dialect.read(request, msgspec.json.encode(body), {})


def test_alternatives_in_any_order_are_told_with_the_likeliest_first() -> None:
    tops = [{"id": 8, "token": "b", "logprob": -2.0}, {"id": 7, "token": "a", "logprob": -0.5}]
    body = {
        "content": "a",
        "stop": True,
        "stop_type": "eos",
        "completion_probabilities": [ENTRY | {"top_logprobs": tops}],
    }
    request = asked({"text": "a", "params": {"logprobs": 1}})
    found = spoken("m", {"dialect": "llama-completion"}).read(request, msgspec.json.encode(body), {}).logprobs
    assert found is not None
    assert (found.top_token_ids, found.top_logprobs, found.greedy) == ([[7]], [[-0.5]], [True])


def test_a_text_of_parts_of_characters_alone_has_no_log_probabilities() -> None:
    body = {"content": "\u4e2d", "stop": True, "stop_type": "eos", "completion_probabilities": []}
    request = asked({"text": "a", "params": {"logprobs": 1}})
    found = spoken("m", {"dialect": "llama-completion"}).read(request, msgspec.json.encode(body), {}).logprobs
    assert found is not None
    assert found.logprobs == []


def test_a_token_of_no_probability_has_the_least_log_probability() -> None:
    entry = ENTRY | {"id": 8, "logprob": None}
    body = {"content": "a", "stop": True, "stop_type": "eos", "completion_probabilities": [ENTRY, entry]}
    request = asked({"text": "a", "params": {"logprobs": 0}})
    found = spoken("m", {"dialect": "llama-completion"}).read(request, msgspec.json.encode(body), {}).logprobs
    assert found is not None
    assert (found.logprobs, found.greedy, found.top_token_ids) == ([-0.5, LEAST], [True, False], [])


def test_an_empty_answer_has_no_log_probabilities() -> None:
    body = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 1}
    request = asked({"text": "a", "params": {"logprobs": 2}})
    found = spoken("m", {"dialect": "llama-completion"}).read(request, msgspec.json.encode(body), {}).logprobs
    assert found == Logprobs([], [])


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:8000", "http://a:8000/v1"),
        ("http://a:8000/", "http://a:8000/v1"),
        ("https://a/api/v1", "https://a/api/v1"),
    ],
)
def test_a_host_alone_has_openais_routes_under_v1(url: str, base: str) -> None:
    options = EndpointOptions.parse({"urls": url})
    assert dialect_of("m", options).base(options.addresses[0]) == base

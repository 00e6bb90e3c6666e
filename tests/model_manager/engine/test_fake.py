"""The engine without a model: its tokens depend on the prompt alone, and it keeps an engine's rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from millrace.model_manager.client import tokenizing
from millrace.model_manager.client.generation import text_of
from millrace.model_manager.engine.fake import FakeEngine
from millrace.model_manager.engine.scheduling.stopping import StopRules
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest, PromptTooLong
from millrace.model_manager.wire.request import FinishReason, Request
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.engine.scheduling.test_stopping import FOLDER
from tests.model_manager.engine.whole_engines import outputs_of


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine.load(ModelConfig(backend="fake", max_num_seqs=2), tmp_path)


def request(name: str = "a", prompt: list[int] | None = None, **params: object) -> Request:
    return Request(name, prompt or [1, 2], SamplingParams.parse(params))


def test_tokens_depend_on_the_prompt_alone(engine: FakeEngine) -> None:
    outputs = outputs_of(engine, [request("a"), request("b"), request("c", [1, 3])])
    assert outputs["a"].token_ids == outputs["b"].token_ids != outputs["c"].token_ids
    assert len(outputs["a"].token_ids) == 128
    assert outputs["a"].finish_reason is FinishReason.LENGTH


def test_it_goes_on_from_the_tokens_of_another(engine: FakeEngine) -> None:
    whole = outputs_of(engine, [request(max_tokens=9)])["a"].token_ids
    resumed = Request("a", [1, 2], SamplingParams(max_tokens=9), output_token_ids=whole[:4])
    assert outputs_of(engine, [resumed])["a"].token_ids == whole


def test_a_stop_token_and_a_stop_string_end_a_request() -> None:
    engine = FakeEngine.load(ModelConfig(backend="fake"), FOLDER)
    whole = outputs_of(engine, [request()])["a"].token_ids
    by_token = outputs_of(engine, [request(stop_token_ids=[whole[3]])])["a"]
    assert (by_token.token_ids, by_token.stop_reason) == (whole[:4], whole[3])
    by_string = outputs_of(engine, [request(stop=["e", "a", "s"])])["a"]
    assert by_string.stop_reason in ("e", "a", "s")


def test_outputs_are_of_their_constraints() -> None:
    engine = FakeEngine.load(ModelConfig(backend="fake"), FOLDER)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    asked = [request(str(n), [n], max_tokens=20, constraint={"regex": "[a-c]{3,}(yes|no)"}) for n in range(5)]
    for output in outputs_of(engine, [*asked]).values():
        assert re.fullmatch("[a-c]{3,}(yes|no)", tokenizer.decode(output.token_ids))
        assert output.forced


def test_an_output_that_the_budget_cuts_short_has_all_its_text() -> None:
    engine = FakeEngine.load(ModelConfig(backend="fake"), FOLDER)
    asked = [request(str(n), [n], max_tokens=2, constraint={"regex": "a[a-z]*"}, ignore_eos=True) for n in range(5)]
    decoder = tokenizing.Tokenizer.load(FOLDER)
    for each, output in zip(asked, outputs_of(engine, [*asked]).values(), strict=True):
        assert len(output.token_ids) == 2
        assert text_of(output, each.params, decoder) == decoder.joined(output.token_ids)


def test_no_more_than_max_num_seqs_run_at_once(engine: FakeEngine) -> None:
    for name in "abc":
        engine.add(request(name, max_tokens=2))
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    assert engine.step().new_token_ids.keys() == {"a", "b"}
    assert [output.request_id for output in engine.step().outputs] == ["a", "b"]
    assert engine.step().new_token_ids.keys() == {"c"}
    assert [output.request_id for output in engine.step().outputs] == ["c"]
    assert (engine.stats().running, engine.stats().batch) == (0, 1.5)


def test_abort_answers_with_the_tokens_so_far(engine: FakeEngine) -> None:
    engine.add(request())
    engine.step()
    engine.abort("a")
    engine.abort("unknown")
    (output,) = engine.step().outputs
    assert (len(output.token_ids), output.finish_reason) == (1, FinishReason.ABORT)
    assert not engine.has_work()


def test_a_deadline_ends_a_request_with_what_it_has(engine: FakeEngine) -> None:
    now = 0.0
    engine = FakeEngine(
        msgspec.structs.replace(engine.info, max_num_seqs=1), StopRules(frozenset(), None), clock=lambda: now
    )
    for name in ("running", "waiting"):
        engine.add(request(name, deadline=5.0))
    engine.step()
    now = 6.0
    result = engine.step()
    (running,) = result.outputs
    assert (running.request_id, running.finish_reason) == ("running", FinishReason.DEADLINE)
    assert [failure.error.kind for failure in result.failures] == ["DeadlineExceeded"]
    assert not engine.has_work()


def test_what_can_never_run_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(PromptTooLong, match="2048"):
        engine.add(request(prompt=[1] * 2048))
    with pytest.raises(InvalidRequest):
        engine.add(request(prompt=[1000]))
    engine.add(request())
    with pytest.raises(InvalidRequest, match="running already"):
        engine.add(request())


def test_the_folder_says_what_the_model_is(tmp_path: Path) -> None:
    config = {"vocab_size": 3, "eos_token_id": [0, 2], "max_position_embeddings": 50}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = FakeEngine.load(ModelConfig(backend="fake"), tmp_path)
    info = engine.info
    assert (info.vocab_size, info.eos_token_ids, info.max_model_len) == (3, [0, 2], 50)
    assert set(outputs_of(engine, [request(max_tokens=30)])["a"].token_ids) == {1}
    assert FakeEngine.load(ModelConfig(backend="fake", max_model_len=9), tmp_path).info.max_model_len == 9


def test_each_step_takes_the_delay_while_requests_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = FakeEngine.load(ModelConfig(backend="fake"), tmp_path)
    slept: list[float] = []
    engine = FakeEngine(loaded.info, loaded._stop_rules, delay=0.25, sleep=slept.append)
    outputs_of(engine, [request(max_tokens=3)])
    assert slept == [0.25] * 3
    monkeypatch.setenv("MILLRACE_FAKE_STEP_SECONDS", "0.5")
    assert FakeEngine.load(ModelConfig(backend="fake"), tmp_path)._delay == 0.5


def test_it_loads_no_torch() -> None:
    code = (
        "import sys, millrace.model_manager.engine.fake, millrace.model_manager.engine.process;"
        " sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scores_and_embeddings_depend_on_the_prompt_alone(engine: FakeEngine) -> None:
    tasks = {
        name: Request(name, tokens, SamplingParams(), task=task, score_from=1)  # type: ignore[arg-type, unused-ignore]
        for name, tokens, task in (
            ("s", [1, 2, 3], "score"),
            ("s2", [1, 2, 3], "score"),
            ("e", [1, 2], "embed"),
            ("e2", [1, 3], "embed"),
        )
    }
    outputs = outputs_of(engine, [*tasks.values(), request("g", [1, 2, 3], prompt_logprobs=2, max_tokens=2)])
    assert outputs["s"].prompt_logprobs == outputs["s2"].prompt_logprobs
    assert outputs["s"].prompt_logprobs is not None
    assert [value < 0 for value in outputs["s"].prompt_logprobs.logprobs] == [True, True]
    assert outputs["e"].embedding != outputs["e2"].embedding
    assert outputs["g"].prompt_logprobs is not None
    assert [len(ids) for ids in outputs["g"].prompt_logprobs.top_token_ids] == [2, 2]
    assert len(outputs["g"].token_ids) == 2


def test_the_lowest_number_runs_first_and_a_row_that_made_way_goes_on(engine: FakeEngine) -> None:
    alone = outputs_of(engine, [request("b", max_tokens=9)])["b"]
    for name in ("a", "b"):
        engine.add(request(name, max_tokens=9))
    engine.step()
    engine.add(request("urgent", max_tokens=2, priority=-1))
    first = engine.step()
    assert set(first.new_token_ids) == {"urgent", "a"}
    assert [output.request_id for output in engine.step().outputs] == ["urgent"]
    rest = outputs_of(engine, [])
    assert rest["b"].token_ids == alone.token_ids

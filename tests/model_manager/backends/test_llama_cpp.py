"""llama.cpp in the inference process, over the embedded model as GGUF files, as its users have it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import (
    ConfigError,
    ConstraintNotMet,
    InvalidRequest,
    ModelDoesNotFit,
    ModelLoadFailed,
    PromptTooLong,
)
from millrace.model_manager.wire.request import FinishReason
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.gguf_files import Format, write_gguf
from tests.model_manager.backends.scenarios import CAPITALS, PATIENCE, SUMS, Case, Running, Scenarios
from tests.model_manager.backends.scenarios import running as both_engines
from tests.waiting import eventually

pytestmark = pytest.mark.engines

EXACT = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn_type": "disabled"}
"""Its flash attention rounds otherwise in other company: 2 to 7 of 60 sampled rows differed, without it none."""
CASE = Case(
    "llama_cpp",
    settings={"max_num_seqs": 8, "backend_options": EXACT},
    constraints=("regex", "json_schema", "json", "choice", "grammar"),
    unknown_option="n_ubacth",
    differ=1,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("models") / "tiny-f32.gguf")


@pytest.fixture(scope="module")
def running(
    model: Path, engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    engine_python(CASE.backend)
    case = replace(CASE, settings={**CASE.settings, "model": str(model)})
    yield from both_engines(case, tmp_path_factory.mktemp("engines") / "run")


def config(model: Path | str, **settings: Any) -> ModelConfig:
    return ModelConfig.parse({"backend": "llama_cpp", "model": str(model), "num_threads": 1, **settings})


class TestLlamaCpp(Scenarios):
    """All scenarios. Where one is overridden its docstring says what llama.cpp does otherwise."""

    def test_stop_strings_and_stop_tokens_end_outputs_as_in_our_engine(self, running: Running) -> None:
        """It takes no stop tokens."""
        for params in ({"stop": ["r", "i"]}, {"stop": ["a"], "include_stop_str_in_output": True}):
            one, other = (running.answers(CAPITALS[:4], each, **params) for each in self._both(running))
            assert [(each.text, each.stop_reason) for each in one] == [(each.text, each.stop_reason) for each in other]
            assert sum(each.stop_reason is not None for each in one) >= 3

    def test_logprobs_are_what_our_engine_finds(self, running: Running) -> None:
        """An end-of-sequence token has no text."""
        one, other = (running.answers(CAPITALS[:3], each, logprobs=2, max_tokens=4) for each in self._both(running))
        for mine, theirs in zip(one, other, strict=True):
            assert mine.logprobs is not None
            assert theirs.logprobs is not None
            assert mine.logprobs.logprobs == pytest.approx(theirs.logprobs.logprobs, abs=0.01)
            assert mine.logprobs.greedy == theirs.logprobs.greedy
            assert mine.logprobs.top_token_ids == theirs.logprobs.top_token_ids
            texts = [each.token.replace("</s>", "") for each in theirs.logprobs.tokens]
            assert [each.token for each in mine.logprobs.tokens] == texts

    def test_a_request_too_long_fails_alone(self, running: Running) -> None:
        """Only the engine knows how long a text is."""
        beside = running.submit(CAPITALS[0], max_tokens=4)
        with pytest.raises(PromptTooLong, match=r"^prompt of \d+ tokens: prompt and output together take at most 1024"):
            running.answer("word " * 5000)
        assert beside.result(PATIENCE).text

    def test_requests_go_on_after_the_engine_is_killed(self, running: Running) -> None:
        """They are asked again from the beginning: it takes text, so tokens cannot be kept."""
        params: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
        whole = running.answers(CAPITALS, **params)
        pid = running.engine_pid()
        asked = [running.submit(each, **params) for each in CAPITALS]
        os.kill(pid, signal.SIGKILL)
        found = [future.result(PATIENCE) for future in asked]
        assert [each.num_generated for each in found] == [200] * len(CAPITALS)
        assert sum(one.text != other.text for one, other in zip(found, whole, strict=True)) <= CASE.differ
        eventually(lambda: running.engine_pid() != pid, "another engine")

    def test_conversations_go_through_the_files_own_template(self, running: Running) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": CAPITALS[0]}]
        one, other = (running.submit(messages, each, max_tokens=8).result(PATIENCE) for each in self._both(running))
        assert (one.token_ids, one.prompt_tokens) == (other.token_ids, other.prompt_tokens)
        with pytest.raises(InvalidRequest, match=r"^messages: the model's chat template: unknown role: nobody"):
            running.answer([{"role": "nobody", "content": "x"}])

    def test_sampling_parameters_change_what_they_are_to_change(self, running: Running) -> None:
        first = running.answer(CAPITALS[0], max_tokens=1).token_ids[0]
        assert running.answer(CAPITALS[0], max_tokens=1, logit_bias={first: -100}).token_ids != [first]
        hot = {"max_tokens": 20, "temperature": 20.0, "ignore_eos": True}
        greedy = running.answer(CAPITALS[1], max_tokens=20, ignore_eos=True).text
        for cut in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
            assert running.answer(CAPITALS[1], seed=3, **hot, **cut).text == greedy
        assert running.answer(CAPITALS[1], seed=3, **hot).text != greedy
        repeated = {"max_tokens": 60, "ignore_eos": True}
        lone, kinds = (
            len(set(running.answer(CAPITALS[2], repetition_penalty=penalty, **repeated).text)) for penalty in (1.0, 5.0)
        )
        assert lone < kinds

    def test_a_bias_of_a_token_that_there_is_not_is_refused(self, running: Running) -> None:
        """llama.cpp would take it, and do nothing."""
        with pytest.raises(InvalidRequest, match=r"^logit_bias: has token id 9999999; the model's are 0 to \d+"):
            running.answer(CAPITALS[0], max_tokens=1, logit_bias={9999999: 5})

    def test_several_answers_to_a_prompt_come_together(self, running: Running) -> None:
        found = running.answer(CAPITALS[0], n=3, temperature=3.0, seed=1, max_tokens=12, ignore_eos=True)
        assert len({each.text for each in found.choices}) == 3

    def test_a_constraint_that_cannot_be_held_is_refused_and_a_cut_output_is_no_answer(self, running: Running) -> None:
        """llama.cpp would log it, and generate without it."""
        for constraint, said in (({"regex": "(?=a)b"}, "look-ahead"), ({"grammar": "start: foo"}, "foo")):
            with pytest.raises(InvalidRequest, match=said):
                running.answer(CAPITALS[0], constraint=constraint)
        with pytest.raises(ConstraintNotMet, match="after 2 tokens"):
            running.answer(CAPITALS[0], constraint={"regex": "a{9}"}, max_tokens=2)
        assert running.answer(CAPITALS[0], constraint={"regex": "a{2,}"}, max_tokens=2, ignore_eos=True).text == "aa"

    @pytest.mark.parametrize(
        "constraint",
        [{"regex": "a/\u00e9\\d"}, {"choice": ['a"/b', "c\n"]}, {"grammar": 'start: "x" %json {"type": "boolean"}'}],
    )
    def test_constraints_with_marks_of_their_own_are_held(self, running: Running, constraint: dict[str, Any]) -> None:
        assert running.answer(CAPITALS[0], constraint=constraint, max_tokens=20).finish_reason is FinishReason.STOP

    def test_requests_of_a_lower_number_go_first(self, running: Running) -> None:
        order: list[int] = []
        lengths = [500, 540, 580, *[620] * 5]
        pid = running.engine_pid()
        os.kill(pid, signal.SIGSTOP)  # until all of them wait
        try:
            asked = [running.submit(CAPITALS[0], max_tokens=length, ignore_eos=True) for length in lengths]
            for priority in (5, 5, 5, 1, 1, 1):
                future = running.submit(CAPITALS[1], priority=priority, max_tokens=40, ignore_eos=True)
                future.add_done_callback(lambda _, priority=priority: order.append(priority))  # type: ignore[misc]
                asked.append(future)
        finally:
            os.kill(pid, signal.SIGCONT)
        for future in asked:
            future.result(PATIENCE)
        assert order == [1, 1, 1, 5, 5, 5]


@pytest.mark.parametrize(("kind", "most"), [("q8_0", 4), ("q5_1", 12), ("q4_0", 24)])
def test_quantized_files_answer_nearly_the_same(running: Running, tmp_path: Path, kind: Format, most: int) -> None:
    path = write_gguf(tmp_path / f"tiny-{kind}.gguf", kind)
    prompts = CAPITALS + SUMS
    with EngineClient.open(config(path), manager=ManagerConfig(linger=0.0), runtime=tmp_path / "run") as client:
        assert client.info.dtype == kind
        found, exact = (running.answers(prompts, each, max_tokens=24) for each in (client, running.client))
    assert sum(one.text != other.text for one, other in zip(found, exact, strict=True)) <= most


@pytest.mark.usefixtures("running")
def test_plain_text_without_a_template_is_continued(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "base.gguf", fields={"tokenizer.chat_template": None})
    with EngineClient.open(config(path), runtime=tmp_path / "run", manager=ManagerConfig(linger=0.0)) as client:
        assert not client.info.chat
        assert client.submit("What", SamplingParams(max_tokens=3), request_id="a").result(PATIENCE).prompt_tokens == 1


def opening(model: Path | str, runtime: Path, **settings: Any) -> None:
    EngineClient.open(config(model, **settings), runtime=runtime, manager=ManagerConfig(linger=0.0)).close()


@pytest.mark.usefixtures("running")
def test_what_cannot_be_loaded_is_told_in_a_sentence(model: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", fields={"general.architecture": "lxxma"})
    with pytest.raises(ModelLoadFailed, match=r"llama\.cpp: unknown model architecture: 'lxxma'"):
        opening(other, tmp_path / "run")
    with pytest.raises(ModelDoesNotFit, match=r"room for \d+ tokens, and one request takes 1024: lower max_model_len"):
        opening(model, tmp_path / "run", max_model_len=1024, kv_cache_gib=1e-3)
    with pytest.raises(ConfigError, match="max_model_len=4096: takes at most 1024"):
        opening(model, tmp_path / "run", max_model_len=4096)
    with pytest.raises(ConfigError, match="cache_type_k='f64': takes f32, f16"):
        opening(model, tmp_path / "run", backend_options={"cache_type_k": "f64"})
    with pytest.raises(ConfigError, match="n_ubatch='many': takes an integer"):
        opening(model, tmp_path / "run", backend_options={"n_ubatch": "many"})


@pytest.mark.usefixtures("running")
def test_slots_are_as_many_as_the_cache_holds(model: Path, tmp_path: Path) -> None:
    settings = {"backend_options": {"n_ctx": 1500}, "max_model_len": 300}
    with EngineClient.open(
        config(model, **settings), runtime=tmp_path / "run", manager=ManagerConfig(linger=0.0)
    ) as client:
        assert (client.info.max_model_len, client.info.max_num_seqs) == (512, 2)


def test_other_weights_and_other_engines_are_told_apart(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="llama_cpp takes a GGUF file"):
        opening(EMBEDDED_MODEL, tmp_path)
    with pytest.raises(ConfigError, match=r"the back end torch takes weights in safetensors format.*llama_cpp"):
        EngineClient.open(ModelConfig(model=str(model)), runtime=tmp_path)


def test_its_log_stays_out_of_ours(running: Running) -> None:
    running.answers(CAPITALS)
    with pytest.raises(PromptTooLong):
        running.answer("word " * 5000)
    logs = [path.read_text(errors="replace") for path in running.runtime.glob("*.log")]
    assert logs
    assert not [line for text in logs for line in text.splitlines() if "slot " in line or "srv " in line]


def test_the_schema_of_a_row_is_met(running: Running) -> None:
    schema = {"properties": {"s": {"enum": ["\u00e9", 'a"b']}}, "required": ["s"], "additionalProperties": False}
    found = running.answer(CAPITALS[0], constraint={"json_schema": {"type": "object", **schema}}, max_tokens=60)
    assert json.loads(found.text)["s"] in ("\u00e9", 'a"b')

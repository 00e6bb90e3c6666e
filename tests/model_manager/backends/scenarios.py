"""Scenarios for every engine that takes tokens, with a real manager and a real client."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.model_manager.client.deltas import OnDelta
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.client.status import read_status
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig, cache_folder
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, PromptTooLong, RequestAborted, RequestError
from millrace.model_manager.wire.request import FinishReason, Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.every_parameter import CHANGED
from tests.model_manager.backends.generated import generated
from tests.waiting import eventually

PATIENCE = 300.0
"""Seconds; a busy machine loads some engines for a minute."""
CAPITALS = [f"What is the capital of {each}?" for each in "France Peru Japan Kenya Spain Chile Norway Cuba".split()]
SUMS = [f"What is {n} plus {n % 7}?" for n in range(24)]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Case:
    """An engine under test, and what is known of it."""

    backend: str
    settings: dict[str, Any] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    seeds: bool = True
    logprobs: bool = True
    unknown_option: str = "max_nun_seqs"
    differ: int = 0
    """Most rows whose greedy tokens may differ from another run's: rounding decides between two tokens."""

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.parse({"backend": self.backend, **self.settings})


@dataclass
class Running:
    """A client of an engine, and one of ours beside it."""

    case: Case
    client: EngineClient
    ours: EngineClient
    runtime: Path
    count: int = 0

    def submit(
        self, prompt: Any, client: EngineClient | None = None, on_delta: OnDelta | None = None, **params: Any
    ) -> Future[Output]:
        self.count += 1
        name, asked = f"request-{self.count}", SamplingParams.parse(params)
        return (client or self.client).submit(prompt, asked, request_id=name, on_delta=on_delta)

    def answer(self, prompt: Any, **params: Any) -> Output:
        return self.submit(prompt, **params).result(PATIENCE)

    def answers(self, prompts: list[str], client: EngineClient | None = None, **params: Any) -> list[Output]:
        asked = [self.submit(each, client, **params) for each in prompts]
        return [future.result(PATIENCE) for future in asked]

    def engine_pid(self) -> int:
        def pids() -> list[int]:
            status = read_status(self.runtime)
            found = status.models if status else []
            return [
                pid for model in found if model.state == "ready" and model.key == self.client.key for pid in model.pids
            ]

        found: list[int] = eventually(pids, "an engine")
        return found[0]

    def disturbed(self, most: int, *, shown: bool, **params: Any) -> list[tuple[Output, Output]]:
        """Answers of an engine, each with that to the same request where the engine was killed once tokens had come.

        `shown`: all of these requests are streamed, and each has tokens by then. Else a short one is, which comes last,
        and nobody is shown the others' tokens.
        """
        params |= {"max_tokens": most, "ignore_eos": True}
        whole = self.answers(CAPITALS[:6], **params)
        for _ in range(5):  # on a busy machine all answers may be there before the engine is killed
            found = self._killed(shown=shown, **params)
            assert {len(each.token_ids) for each in found} == {most}
            if pairs := [(one, other) for one, other in zip(whole, found, strict=True) if other.setbacks]:
                return pairs
        raise AssertionError("all answers were there each time before the engine was killed")

    def _killed(self, *, shown: bool, **params: Any) -> list[Output]:
        """Answers to the same requests, whose engine was killed once tokens had come."""
        prompts = CAPITALS[:6]
        pid, begun = self.engine_pid(), [threading.Event() for _ in prompts]
        seen = [self._setter(each) if shown else None for each in begun]
        asked = [self.submit(each, on_delta=one, **params) for each, one in zip(prompts, seen, strict=True)]
        if not shown:
            short = threading.Event()
            begun = [short]
            asked.append(self.submit(prompts[0], on_delta=self._setter(short), max_tokens=8, ignore_eos=True))
        assert all(each.wait(PATIENCE) for each in begun)
        os.kill(pid, signal.SIGKILL)
        found = [future.result(PATIENCE) for future in asked][: len(prompts)]
        eventually(lambda: self.engine_pid() != pid, "another engine")
        return found

    def _setter(self, event: threading.Event) -> OnDelta:
        return lambda _delta: event.set()


def running(case: Case, runtime: Path) -> Iterator[Running]:
    """Both engines; they end with the clients."""
    manager = ManagerConfig(linger=0.5)
    ours = EngineClient.open(ModelConfig(model=EMBEDDED_MODEL, dtype="float32"), manager=manager, runtime=runtime)
    with ours, EngineClient.open(case.config, manager=manager, runtime=runtime) as client:
        yield Running(case, client, ours, runtime)


def conversions(name: str) -> set[Path]:
    """What the cache folder holds of a model in formats of engines; other test processes convert theirs there too."""
    return set((cache_folder() / "conversions").glob(f"{name}-*"))


def kept_files(name: str) -> dict[Path, tuple[int, int]]:
    """The files of a model's finished conversions, each with its inode and the time of its last change."""
    places = [place for place in conversions(name) if place.is_dir() and place.suffix != ".unfinished"]
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def own_format(running: Running, kind: str, place: Path) -> Path:
    """A folder in the engine's own format, as its converter writes one with the tokenizer's files."""
    kept = [path for path in conversions(f"{EMBEDDED_MODEL}-{kind}") if path.is_dir()]
    made = max(kept, key=lambda path: path.stat().st_mtime)  # another version's may be there
    assert running.client.info.name == EMBEDDED_MODEL
    shutil.copytree(made, place)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(resolve(EMBEDDED_MODEL) / name, place / name)
    return place


@contextlib.contextmanager
def opened(case: Case, folder: Path, runtime: Path, **settings: Any) -> Iterator[EngineClient]:
    """The case's engine with that folder as its model."""
    config = ModelConfig.parse({"backend": case.backend, **case.settings, "model": str(folder), **settings})
    with EngineClient.open(config, manager=ManagerConfig(linger=0.0), runtime=runtime) as client:
        yield client


def a_folder_as_it_is_answers_alike(running: Running, folder: Path, runtime: Path) -> None:
    """And nothing is converted for it."""
    before = conversions(folder.name)
    with opened(running.case, folder, runtime) as client:
        one, other = (running.answers(CAPITALS, each, max_tokens=24) for each in (client, running.client))
    assert [each.token_ids for each in one] == [each.token_ids for each in other]
    assert conversions(folder.name) == before


class Scenarios:
    """Collected by the subclass of each engine, which has the fixture `running`."""

    def test_greedy_answers_are_those_of_generate_in_float32(self, running: Running) -> None:
        """An answer may differ where the likeliest two tokens are as good as equal, and few do."""
        prompts = CAPITALS + SUMS
        found, expected = running.answers(prompts, max_tokens=24), [*generated(prompts, 24)]
        pairs = list(zip(found, expected, strict=True))
        unexplained = [why for one, other in pairs if (why := other.unexplained(one.token_ids))]
        assert not unexplained, unexplained
        assert sum(one.token_ids != other.token_ids for one, other in pairs) <= running.case.differ
        assert {each.finish_reason for each in found} <= {FinishReason.STOP, FinishReason.LENGTH}
        assert [each.prompt_tokens for each in found] == [each.num_prompt_tokens for each in expected]

    def test_rows_have_parameters_of_their_own(self, running: Running) -> None:
        lengths = [1, 3, 8, 40, 2, 17, 64]
        asked = [
            running.submit(prompt, max_tokens=most, ignore_eos=True)
            for prompt, most in zip(CAPITALS, lengths, strict=False)
        ]
        found = [future.result(PATIENCE) for future in asked]
        assert [len(each.token_ids) for each in found] == lengths
        assert {each.finish_reason for each in found} == {FinishReason.LENGTH}

    def test_stop_strings_and_stop_tokens_end_outputs_as_in_our_engine(self, running: Running) -> None:
        asked: list[dict[str, Any]] = [{"stop": ["r", "i"]}, {"stop": ["a"], "include_stop_str_in_output": True}]
        first = running.answers(CAPITALS[:1], running.ours, max_tokens=8)[0].token_ids
        for params in [*asked, {"stop_token_ids": first[1:2]}]:
            params |= {"max_tokens": 30, "ignore_eos": True}
            one, other = (running.answers(CAPITALS[:4], each, **params) for each in (running.client, running.ours))
            assert [(each.text, each.stop_reason) for each in one] == [(each.text, each.stop_reason) for each in other]

    def test_a_seed_gives_the_same_tokens_again(self, running: Running) -> None:
        if not running.case.seeds:
            with pytest.raises(InvalidRequest, match=r"^seed=1: the back end"):
                running.submit("x", seed=1)
            return
        params: dict[str, Any] = {"max_tokens": 16, "temperature": 1.5, "ignore_eos": True}
        one, again, other = (running.answers(CAPITALS[:3], seed=seed, **params) for seed in (1, 1, 2))
        assert [each.token_ids for each in one] == [each.token_ids for each in again]
        assert [each.token_ids for each in one] != [each.token_ids for each in other]

    def test_logprobs_are_what_our_engine_finds(self, running: Running) -> None:
        if not running.case.logprobs:
            with pytest.raises(InvalidRequest, match=r"^logprobs=2: the back end"):
                running.submit("x", logprobs=2)
            return
        one, other = (running.answers(CAPITALS[:3], each, logprobs=2, max_tokens=4) for each in self._both(running))
        for mine, theirs in zip(one, other, strict=True):
            assert mine.logprobs is not None
            assert theirs.logprobs is not None
            assert mine.logprobs.logprobs == pytest.approx(theirs.logprobs.logprobs, abs=0.01)
            assert mine.logprobs.greedy == theirs.logprobs.greedy
            assert [each.token for each in mine.logprobs.tokens] == [each.token for each in theirs.logprobs.tokens]
            assert all(len(tops) == 2 for tops in mine.logprobs.top_token_ids)

    def _both(self, running: Running) -> tuple[EngineClient, EngineClient]:
        return running.client, running.ours

    @pytest.mark.parametrize("kind", ["regex", "json_schema", "json", "choice", "grammar"])
    def test_constraints_are_held_or_refused(self, running: Running, kind: str) -> None:
        values = {
            "regex": "(yes|no){2,4}",
            "json_schema": SCHEMA,
            "json": True,
            "choice": ["Paris", "Lima"],
            "grammar": 'start: "a"+',
        }
        constraint = {kind: values[kind]}
        if kind not in running.case.constraints:
            with pytest.raises(InvalidRequest, match=f"^constraint='\\w+': the back end {running.case.backend} takes"):
                running.submit("x", constraint=constraint)
            return
        text = running.answer(CAPITALS[0], constraint=constraint, max_tokens=80).text
        match kind:
            case "regex":
                assert re.fullmatch("(yes|no){2,4}", text)
            case "choice":
                assert text in ("Paris", "Lima")
            case "grammar":
                assert re.fullmatch("a+", text)
            case _:
                found = msgspec.json.decode(text)
                assert kind == "json" or found.keys() == {"n", "ok"}

    def test_a_request_too_long_fails_alone(self, running: Running) -> None:
        beside = running.submit(CAPITALS[0], max_tokens=4)
        with pytest.raises(PromptTooLong):
            running.submit("word " * 5000)
        assert beside.result(PATIENCE).token_ids

    def test_each_parameter_that_it_does_not_obey_is_refused_by_name(self, running: Running) -> None:
        backend = BACKENDS[running.case.backend]
        for name in CHANGED.keys() - backend.parameters - {"constraint"}:
            with pytest.raises(InvalidRequest, match=f"^{name}=.*: the back end {backend.name} does not take it"):
                running.submit("x", **{name: CHANGED[name]})

    def test_an_unknown_option_is_refused_by_name(self, running: Running) -> None:
        name = running.case.unknown_option
        settings = {**running.case.settings, "backend_options": {name: 1}}

        def open_wrong() -> None:
            wrong = ModelConfig.parse({"backend": running.case.backend, **settings})
            EngineClient.open(wrong, runtime=running.runtime).close()

        with pytest.raises(ConfigError, match=name):
            open_wrong()

    def test_a_cancelled_request_ends_and_the_others_go_on(self, running: Running) -> None:
        """One that an engine has ended before the test comes to cancel it cannot be cancelled any more."""
        cancelled, others = [], []
        for prompt in CAPITALS[:4]:
            future = running.submit(prompt, max_tokens=900, ignore_eos=True)
            others.append(running.submit(prompt, max_tokens=300, ignore_eos=True))
            if future.cancel():
                cancelled.append(future)
        for future in others:
            assert len(future.result(PATIENCE).token_ids) == 300
        assert cancelled
        assert all(future.cancelled() or isinstance(future.exception(), RequestAborted) for future in cancelled)

    def test_a_deadline_ends_a_request_with_what_it_has(self, running: Running) -> None:
        try:
            found = running.answer(CAPITALS[0], max_tokens=900, ignore_eos=True, deadline=0.3)
        except RequestError as error:
            assert "deadline" in str(error)  # noqa: PT017  nothing had come by then
        else:
            assert found.finish_reason in (FinishReason.DEADLINE, FinishReason.LENGTH)

    def test_requests_go_on_from_their_tokens_after_the_engine_is_killed(self, running: Running) -> None:
        keeps, kept = BACKENDS[running.case.backend].continues != "none", self._conversion(running)
        pairs = running.disturbed(300, shown=keeps)
        if keeps:
            assert all(each.recomputed_tokens > each.prompt_tokens for _, each in pairs), "no engine was given tokens"
        else:
            assert {each.recomputed_tokens for _, each in pairs} == {0}
        different = [(one.text, other.text) for one, other in pairs if one.text != other.text]
        assert kept.items() <= self._conversion(running).items(), "what was converted is loaded again as it is"
        assert len(different) <= running.case.differ, different

    def _conversion(self, running: Running) -> dict[Path, tuple[int, int]]:
        """Files of the model in the engine's own format, if it has one."""
        backend = running.case.backend
        found = kept_files(f"{EMBEDDED_MODEL}-{backend}")
        assert bool(found) is bool(BACKENDS[backend].own_files)
        return found

    def test_seeded_samples_are_the_same_after_the_engine_is_killed(self, running: Running) -> None:
        """They begin anew where the engine's random numbers after the tokens that are kept would be the first ones
        again.
        """
        if not running.case.seeds:
            pytest.skip("takes no seeds")
        params = {"seed": 11, "temperature": 1.0}
        pairs = running.disturbed(300, shown=False, **params)
        assert [one.text for one, _ in pairs] == [other.text for _, other in pairs]
        goes_on = BACKENDS[running.case.backend].goes_on(SamplingParams.parse(params))
        assert any(each.recomputed_tokens for _, each in pairs) is goes_on

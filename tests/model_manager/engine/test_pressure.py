"""Random requests on an engine with few blocks, rows and tokens a step: each ends once, with the tokens it has alone.

Tokens are a function of the history that the runner reads back from its blocks, so a block that is reused too early,
shared wrongly or not computed shows as another token. What each check is there to catch stands beside it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.engine.scheduling import promotion, scheduler
from millrace.model_manager.engine.scheduling.scheduler import Scheduler
from millrace.model_manager.engine.scheduling.sequence import QueueRank, Sequence, SequenceStatus
from millrace.model_manager.wire.common_beginning import common_beginning
from millrace.model_manager.wire.errors import PromptTooLong
from millrace.model_manager.wire.request import FinishReason, Request
from tests.model_manager.engine.drafting import Oracle, speculate, unrestrained
from tests.model_manager.engine.history_runner import (
    BYTES_PER_BLOCK,
    EngineUnderTest,
    HistoryRunner,
    reference_tokens,
    request,
)
from tests.model_manager.engine.scheduling.test_scheduler import Driver

BLOCK = 8
MOST_OVERTAKES = 2
CUT_SHORT = (FinishReason.ABORT, FinishReason.DEADLINE)

OWN = st.lists(st.integers(1, 3), min_size=1, max_size=9)
PROMPTS = st.one_of(
    st.integers(1, 40).map(lambda length: [5] * length),  # beginnings of one another
    st.tuples(st.sampled_from([16, 24]), OWN).map(lambda parts: [7] * parts[0] + parts[1]),
    st.tuples(st.sampled_from([16, 24]), OWN).map(lambda parts: [7] * parts[0] + parts[1]),
    OWN,
)
ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": PROMPTS,
            "max_tokens": st.integers(1, 30),
            "temperature": st.sampled_from([0.0, 1.0]),
            "resumed": st.sampled_from([0, 0, 3]),
            "at": st.integers(0, 12),
            "aborted_after": st.sampled_from([None] * 5 + [0, 3, 9]),
            "broken": st.sampled_from([False] * 19 + [True]),
            "cache_salt": st.sampled_from(["", "", "", "other"]),
            "priority": st.sampled_from([0] * 5 + [-1, -2, 1, 2]),
            "deadline": st.sampled_from([None] * 5 + [1, 10, 30]),
            "family": st.sampled_from(["", "one", "two"]),
        }
    ),
    min_size=8,
    max_size=16,
)


@given(
    arrivals=ARRIVALS,
    num_blocks=st.integers(3, 20),
    max_num_seqs=st.integers(1, 6),
    extra_budget=st.integers(0, 30),
    prefix_caching=st.sampled_from([True, True, True, False]),
    digests_collide=st.sampled_from([False, False, False, True]),
    runs_ahead=st.booleans(),
    admits_together=st.integers(1, 3),
    num_drafts=st.sampled_from([0, 0, 1, 4]),
    wrong_drafts=st.integers(1, 4),
    resizes=st.dictionaries(st.integers(0, 60), st.integers(0, 20), max_size=4),
)
@settings(max_examples=60)
def test_whatever_comes_each_request_ends_once_and_as_if_alone(
    arrivals: list[dict[str, Any]],
    num_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    prefix_caching: bool,
    digests_collide: bool,
    runs_ahead: bool,
    admits_together: int,
    num_drafts: int,
    wrong_drafts: int,
    resizes: dict[int, int],
) -> None:
    """`resizes`: how many blocks the cache is to have from a step on."""
    broken: list[list[int]] = []

    def is_broken(history: list[int]) -> bool:
        return any(history[: len(each)] == each for each in broken)

    runner = HistoryRunner(num_blocks, BLOCK, 60, is_broken, runs_ahead=runs_ahead)
    with narrow_look_ahead():
        under_test = Watched(
            runner,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            prefix_caching=prefix_caching,
        )
    under_test.engine._scheduler._admits_together = admits_together
    pressure = Pressure(under_test, arrivals, resizes)
    broken += [asked.prompt_token_ids for name, asked in pressure.requests.items() if pressure.arrivals[name]["broken"]]
    if num_drafts:
        known = {name: reference_tokens(asked, 60) for name, asked in pressure.requests.items()}
        oracle = Oracle(known, wrong=lambda name, index: (index + len(name)) % wrong_drafts == 0)
        speculate(under_test, oracle, unrestrained(num_drafts))
    under_test.watch = Watch(
        under_test.engine._scheduler,
        lambda each: circle(pressure.requests[each.request_id], prefix_caching),
        expects_no_work_twice=not broken and not digests_collide and not resizes,
    )
    if digests_collide:
        under_test.blocks._cache._digest = lambda parent, tokens: bytes([sum(parent + tokens) % 3])
    with narrow_look_ahead():
        pressure.play()
    pressure.check(broken)


@given(seed=st.integers(0, 2**32), prefixes=st.integers(1, 4), resizes=st.booleans())
@settings(max_examples=30)
def test_nobody_is_passed_too_often_and_no_beginning_is_computed_twice_at_a_time(
    seed: int, prefixes: int, resizes: bool
) -> None:
    """The scheduler alone, so that more can be tried."""
    rnd = random.Random(seed)
    with narrow_look_ahead():
        blocks, rows, budget = rnd.randint(12, 40), rnd.randint(1, 5), rnd.randint(5, 40)
        driver = Driver(blocks, rows, budget, block_size=BLOCK, admits_together=rnd.choice([1, 2, 3]))
        priorities = rnd.choice([[0, 0, 0, 0, 1], [0, -1, -1, -2, 1, 2]])
        watch = Watch(
            driver.scheduler, lambda each: f"salt {each.params.cache_salt}", expects_no_work_twice=not resizes
        )
        for _ in range(80):
            for _ in range(rnd.choice([0, 0, 1, 3])):
                beginning = (rnd.randrange(prefixes),) * rnd.choice([0, 8, 16, 24, 32])
                own = rnd.randint(0 if beginning else 1, 9)
                options = {"cache_salt": rnd.choice(["", "", "x"]), "priority": rnd.choice(priorities)}
                driver.add(str(driver.arrivals), own, rnd.randint(1, 20), prefix=beginning, **options)
            if rnd.random() < 0.1 and driver.scheduler.running:
                driver.scheduler.finish(rnd.choice(list(driver.scheduler.running.values())))
            if rnd.random() < 0.1 * resizes:
                driver.scheduler.resize(rnd.randint(12, blocks))
            watch.step(driver.step)
        while driver.scheduler.running or driver.scheduler.waiting:
            watch.step(driver.step)
    assert driver.blocks.num_free == driver.blocks.num_blocks


@contextmanager
def narrow_look_ahead() -> Iterator[None]:
    """Bounds that a dozen requests reach."""
    with (
        mock.patch.multiple(scheduler, LOOK_AHEAD=4, MOST_OVERTAKES=MOST_OVERTAKES),
        mock.patch.multiple(promotion, SHARE=2, TURN=2, PART_OF_ROWS=2),
        mock.patch.object(scheduler, "PART_OF_BLOCKS", 2),
    ):
        yield


class Watch:
    """Looks at a scheduler from step to step."""

    def __init__(self, scheduler: Scheduler, circle: Callable[[Sequence], str], *, expects_no_work_twice: bool) -> None:
        """`circle`: which sequences one may share with; empty is none."""
        self._scheduler = scheduler
        self._circle = circle
        self._expects_no_work_twice = expects_no_work_twice
        self._passed: Counter[tuple[str, int | None]] = Counter()
        """By id, and by promotion."""
        self._found: dict[str, int] = {}  # blocks that each had from the cache when it last began
        self._allocate = scheduler._blocks.allocate
        scheduler._blocks.allocate = self._allocate_and_note  # type: ignore[method-assign]
        self._promoted: set[str] = set()
        self._begin = scheduler._promotion.begin
        scheduler._promotion.begin = self._begin_and_note  # type: ignore[method-assign]

    def _begin_and_note(self, sequence: Sequence) -> QueueRank:
        self._promoted.add(sequence.request_id)
        return self._begin(sequence)

    def _allocate_and_note(self, sequence: Sequence, keep_free: int = 0) -> bool:
        allocated = self._allocate(sequence, keep_free)
        self._found[sequence.request_id] = sequence.num_committed_blocks
        return allocated

    def step(self, step: Callable[[], object]) -> None:
        waiting = self._scheduler.waiting.values()
        step()
        self._check_order(waiting)
        for one, other in itertools.combinations(self._scheduler.running.values(), 2):
            self._check_shared(one, other)

    def _check_order(self, waiting: list[Sequence]) -> None:
        """Catches: an unbounded preference for what is cached, or for others while a beginning is awaited."""
        started = [each for each in waiting if each.status is not SequenceStatus.WAITING and not was_cut_short(each)]
        started = [each for each in started if each.request_id not in self._promoted]  # whose rank may be its own again
        for each in started:
            assert (each.cached_tokens or 0) < each.num_tokens  # the whole prompt is never reused
            for patient in waiting:
                if patient.status is SequenceStatus.WAITING and patient.rank < each.rank:
                    self._passed[patient.request_id, patient.turn_ends] += 1
        assert not self._passed or max(self._passed.values()) <= MOST_OVERTAKES

    def _check_shared(self, one: Sequence, other: Sequence) -> None:
        """Catches: reuse by digest alone, without regard to salt or family, or of blocks that were given up; and a
        beginning that is computed twice at a time.
        """
        same = [a == b for a, b in zip(one.block_table, other.block_table, strict=False)]
        assert same.count(True) == len(set(one.block_table) & set(other.block_table))
        shared = same.count(True) * BLOCK
        may_share = self._circle(one) == self._circle(other) != ""
        if shared:
            assert may_share
            assert one.token_ids[:shared] == other.token_ids[:shared]
        if self._expects_no_work_twice and may_share:
            common = common_beginning(prompt(one), prompt(other))
            most = (min(one.num_prompt_tokens, other.num_prompt_tokens) - 1) // BLOCK
            both_computed = max(self._found[one.request_id], self._found[other.request_id])
            assert all(same[both_computed : min(common // BLOCK, most)])


class Watched(EngineUnderTest):
    """A second passes with each step."""

    watch: Watch

    def step(self) -> None:
        self.clock.now += 1.0
        self.watch.step(super().step)
        if not self.engine.has_work():
            assert not self.blocks._cache._computing  # else a later request would wait for nobody


def circle(asked: Request, prefix_caching: bool) -> str:
    return f"salt {asked.params.cache_salt}" if prefix_caching else asked.family


def was_cut_short(sequence: Sequence) -> bool:
    return sequence.ending is not None and sequence.ending.reason in CUT_SHORT


def prompt(sequence: Sequence) -> list[int]:
    return sequence.token_ids[: sequence.num_prompt_tokens]


class Pressure:
    """Requests that arrive and are aborted at given steps, with everything that concerns their scheduling."""

    def __init__(
        self, under_test: EngineUnderTest, arrivals: list[dict[str, Any]], resizes: dict[int, int] | None = None
    ) -> None:
        self.under_test = under_test
        self.resizes = resizes or {}
        self.arrivals = {str(n): arrival for n, arrival in enumerate(arrivals)}
        self.max_len = under_test.engine.max_len
        self.requests = {name: self._request(name, arrival) for name, arrival in self.arrivals.items()}

    def _request(self, name: str, arrival: dict[str, Any]) -> Request:
        names = ("max_tokens", "temperature", "cache_salt", "priority", "deadline")
        asked = request(name, arrival["prompt"], **{each: arrival[each] for each in names})
        resumed = reference_tokens(asked, self.max_len)[: arrival["resumed"]] if self._fits(asked) else []
        return Request(name, asked.prompt_token_ids, asked.params, output_token_ids=resumed, family=arrival["family"])

    def _fits(self, asked: Request) -> bool:
        return len(asked.prompt_token_ids) < self.max_len

    def play(self) -> None:
        steps = 0
        while steps <= 60 or self.under_test.engine.has_work():
            assert steps < 5000
            for name, arrival in self.arrivals.items():
                if arrival["at"] == steps:
                    self._add(self.requests[name])
                if arrival["aborted_after"] is not None and arrival["at"] + arrival["aborted_after"] == steps:
                    self.under_test.engine.abort(name)
            if steps in self.resizes:
                self.under_test.engine.resize_cache(self.resizes[steps] * BYTES_PER_BLOCK)
            self.under_test.step()
            steps += 1

    def _add(self, asked: Request) -> None:
        if self._fits(asked):
            self.under_test.engine.add(asked)
        else:
            with pytest.raises(PromptTooLong):
                self.under_test.engine.add(asked)

    def check(self, broken: list[list[int]]) -> None:
        """Catches: blocks that are not given back, requests lost or answered twice (EngineUnderTest), tokens that
        depend on company, a deadline that is missed or comes early, failures that spread.
        """
        under_test = self.under_test
        assert under_test.blocks.num_free == under_test.blocks.num_blocks
        admitted = {name for name, asked in self.requests.items() if self._fits(asked)}
        assert under_test.outputs.keys() | under_test.failures.keys() == admitted
        for name, output in under_test.outputs.items():
            asked, expected = self.requests[name], reference_tokens(self.requests[name], self.max_len)
            cut_short = output.finish_reason in CUT_SHORT
            assert output.token_ids == (expected[: len(output.token_ids)] if cut_short else expected)
            if asked.params.deadline is not None:
                assert output.timings.finished <= asked.params.deadline + 1.0
                assert output.finish_reason is not FinishReason.DEADLINE or output.token_ids
        for name, kind in under_test.failures.items():
            asked = self.requests[name]
            if kind == "DeadlineExceeded":
                assert asked.params.deadline is not None
                assert not asked.output_token_ids
            else:
                history = asked.prompt_token_ids + reference_tokens(asked, self.max_len)
                assert any(history[: len(b)] == b for b in broken)

"""Jobs that share a model's engines get tokens by their weights, however many clients each has."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model_manager.manager.entry import Entry
from millrace.model_manager.manager.fair_shares import FairShares
from millrace.model_manager.manager.router import Router
from millrace.model_manager.wire.engine_messages import StepReport
from tests.model_manager.manager.router_world import INFO, SETTINGS, World, output, request
from tests.searches import runs

PROMPT, MOST = 1, 24
"""Tokens of a request: of its prompt, and of its output at most."""
HELD = 2 * INFO.max_num_seqs
"""Requests that the engine holds, those that wait there too."""


@dataclass
class Job:
    """A job with so many clients; its outputs have up to `tokens` tokens."""

    weight: float
    clients: int
    tokens: int
    most: float = math.inf
    """Requests that each of its clients has at a time, at most."""
    served: int = 0
    sent: int = 0


@dataclass
class Shared:
    """A world in which jobs use all the credits that they have, and the engine makes a token of each that it runs."""

    jobs: Sequence[Job]
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.world = World(router=Router(SETTINGS, 0.0))
        self.job_of = dict(enumerate(job for job in self.jobs for _ in range(job.clients)))
        self.lengths: dict[str, int] = {}
        for client, job in self.job_of.items():
            self.world.join(client)
            self.world.open(client, weight=job.weight)
        self.world.load()

    def step(self) -> None:
        self._submit()
        world, tokens = self.world, self.world.engine.tokens
        waits = any(name not in tokens for owed in world.owed.values() for name in +owed)
        assert len(tokens) == HELD or not waits, "the engine has room while requests wait"
        report = StepReport()
        for name in list(tokens)[: INFO.max_num_seqs]:
            self.jobs[int(name.split()[0])].served += 1 if tokens[name] else 1 + PROMPT
            tokens[name].append(7)
            if len(tokens[name]) == self.lengths[name]:
                report.outputs.append(output(name, tokens.pop(name)))
            else:
                report.progress[name] = [7]
        world.now += 0.05
        world.router.tick(world.now)
        world.report(report)

    def _submit(self) -> None:
        for client, job in self.job_of.items():
            most = min(job.most, self.world.limits.get(client, 0))
            for _ in range(int(most) - self.world.owed[client].total()):
                job.sent += 1
                number = next(index for index, each in enumerate(self.jobs) if each is job)
                name = f"{number} {job.sent}"
                self.lengths[name] = self.chance.randint(1, job.tokens)
                asked = msgspec.structs.replace(request(name, max_tokens=MOST), job=f"job {number}")
                self.world.submit(client, asked)

    def run(self, tokens: int) -> list[int]:
        """Serve so many; what each job has got of them."""
        before = [job.served for job in self.jobs]
        while sum(job.served for job in self.jobs) < sum(before) + tokens:
            self.step()
        return [job.served - had for job, had in zip(self.jobs, before, strict=True)]


JOBS = st.builds(
    Job, weight=st.sampled_from([0.5, 1.0, 2.0, 3.0]), clients=st.integers(1, 4), tokens=st.integers(1, MOST)
)


@settings(max_examples=runs(12))
@given(st.lists(JOBS, min_size=2, max_size=3))
def test_jobs_with_work_get_tokens_by_their_weights_and_no_room_is_left(jobs: list[Job]) -> None:
    served = Shared(jobs).run(2500)
    shares = [count / job.weight for count, job in zip(served, jobs, strict=True)]
    held = HELD * (PROMPT + MOST)
    assert max(shares) - min(shares) <= 2 * held / min(job.weight for job in jobs)


def test_a_job_with_eight_clients_gets_what_one_with_one_client_gets() -> None:
    few, many = Shared([Job(1.0, 1, 10), Job(1.0, 8, 10)]).run(6000)
    assert few == pytest.approx(many, rel=0.1)


def test_short_answers_get_as_many_tokens_as_long_ones() -> None:
    short, long = Shared([Job(1.0, 1, 2), Job(1.0, 1, MOST)]).run(6000)
    assert short == pytest.approx(long, rel=0.1)


def test_a_job_gets_nothing_later_for_the_time_in_which_it_had_no_request() -> None:
    busy, late = jobs = [Job(1.0, 1, 10), Job(1.0, 1, 10, most=0)]
    shared = Shared(jobs)
    assert shared.run(2000)[0] >= 2000
    late.most = math.inf
    first, second = shared.run(1000)
    assert first == pytest.approx(second, abs=HELD * (PROMPT + MOST))
    busy.most = 0
    assert shared.run(1000)[1] >= 1000 - HELD * (PROMPT + MOST), "and one job alone has all"


@pytest.mark.parametrize("grows", [False, True])
def test_a_job_that_asks_for_little_lets_neither_itself_nor_a_new_job_get_more_later(grows: bool) -> None:
    """A third job always has two unfinished requests; then a new job comes, or the third asks for all it can get."""
    busy, little, new = jobs = [Job(1.0, 1, 10), Job(1.0, 1, MOST, most=2), Job(1.0, 1, 10, most=0)]
    shared = Shared(jobs)
    had = shared.run(4000)
    assert had[0] > 1.5 * had[1] > 0, had
    more = little if grows else new
    more.most = math.inf
    had_since = dict(zip(map(id, jobs), shared.run(1000), strict=True))
    assert had_since[id(busy)] == pytest.approx(had_since[id(more)], abs=HELD * (PROMPT + MOST))


def order(shares: FairShares, *jobs: str, most_tokens: int) -> list[str]:
    """Whose requests go to engines next, where each job has five; each may take so many tokens."""
    line = [
        Entry(msgspec.structs.replace(request(f"{job} {index}", max_tokens=most_tokens - PROMPT), job=job), arrived=0.0)
        for index in range(5)
        for job in jobs
    ]
    return [entry.request.job for entry in shares.in_turn(line)]


def test_a_job_that_has_no_request_for_a_moment_stays_as_far_ahead_as_it_was() -> None:
    shares = FairShares()
    for job in ("ahead", "other"):
        shares.add(job, 1.0)
    shares.hand_over("ahead", 100)
    shares.finish("ahead", unused=0)
    shares.add("ahead", 1.0)
    assert order(shares, "ahead", "other", most_tokens=31) == ["other"] * 4 + ["ahead", "other"] + ["ahead"] * 4


def test_a_job_that_comes_while_none_waits_begins_where_the_last_request_was() -> None:
    shares = FairShares()
    for _ in range(2):
        shares.add("busy", 1.0)
        shares.hand_over("busy", 1000)
    for job in ("new", "busy"):
        shares.add(job, 1.0)
    assert order(shares, "new", "busy", most_tokens=500)[:5] == ["new"] * 3 + ["busy", "new"]


@pytest.mark.parametrize(("weight", "first"), [(0.5, 8), (1.0, 4), (4.0, 1)])
def test_a_job_whose_weight_changes_stays_ahead_by_as_many_tokens_of_the_new_weight(weight: float, first: int) -> None:
    shares = FairShares()
    for job in ("ahead", "other", "ahead"):
        shares.add(job, 0.001 if job == "ahead" else 1.0)
    shares.hand_over("ahead", 99)
    shares.add("ahead", weight)
    assert order(shares, *["other"] * 2, "ahead", most_tokens=25)[: first + 1] == ["other"] * first + ["ahead"]
    shares.finish("ahead", unused=99)
    assert order(shares, "ahead", "other", most_tokens=25)[:2] == ["ahead", "other"], "what it did not use is undone"


def test_the_weight_is_counted_with_the_job() -> None:
    shared = Shared([Job(3.0, 1, 5), Job(1.0, 1, 5)])
    shared.step()
    assert {job.job: job.weight for job in shared.world.router.jobs()} == {"job 0": 3.0, "job 1": 1.0}
    assert Counter(shared.world.router.model(next(iter(shared.world.router._models))).jobs) == {"job 0": 3, "job 1": 1}

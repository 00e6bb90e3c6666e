"""Jobs that share a model's engines get tokens by their weights, however many clients each has."""

from __future__ import annotations

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
    served: int = 0
    sent: int = 0
    is_idle: bool = False


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
            room = self.world.limits.get(client, 0) - self.world.owed[client].total()
            for _ in range(0 if job.is_idle else room):
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
    busy, late = jobs = [Job(1.0, 1, 10), Job(1.0, 1, 10, is_idle=True)]
    shared = Shared(jobs)
    assert shared.run(2000)[0] >= 2000
    late.is_idle = False
    first, second = shared.run(1000)
    assert first == pytest.approx(second, abs=HELD * (PROMPT + MOST))
    busy.is_idle = True
    assert shared.run(1000)[1] >= 1000 - HELD * (PROMPT + MOST), "and one job alone has all"


def test_a_job_that_has_no_request_for_a_moment_stays_as_far_ahead_as_it_was() -> None:
    shares = FairShares()
    for job in ("ahead", "other"):
        shares.add(job, 1.0)
    shares.charge("ahead", 100)
    shares.remove("ahead")
    shares.add("ahead", 1.0)
    line = [
        Entry(msgspec.structs.replace(request(f"{job} {index}", max_tokens=30), job=job), arrived=0.0)
        for index in range(5)
        for job in ("ahead", "other")
    ]
    order = [entry.request.job for entry in shares.in_turn(line)]
    assert order == ["other"] * 4 + ["ahead", "other"] + ["ahead"] * 4


def test_the_weight_is_counted_with_the_job() -> None:
    shared = Shared([Job(3.0, 1, 5), Job(1.0, 1, 5)])
    shared.step()
    assert {job.job: job.weight for job in shared.world.router.jobs()} == {"job 0": 3.0, "job 1": 1.0}
    assert Counter(shared.world.router.model(next(iter(shared.world.router._models))).jobs) == {"job 0": 3, "job 1": 1}

"""Workers, hours and money of a job, from its tokens and what one worker does in a second. Pure arithmetic.

It is done in fractions: a quotient that is whole must not round up to one worker more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from millrace.model_manager.wire.errors import ConfigError

_HOUR = 3600
_MOST_WORKERS = 4096
_IDLE = 2
"""Workers that have less to do than a start takes, divided by this, are not worth their start."""


@dataclass(frozen=True)
class Work:
    """The tokens of a job."""

    prompt_tokens: Fraction
    generated_tokens: Fraction


@dataclass(frozen=True)
class WorkerSpeed:
    """What one worker does, in tokens a second."""

    generated: Fraction | None
    """As a benchmark, or a trial on like rows, measured them."""
    prompt: Fraction | None = None
    """None: reading prompts is contained in `generated`."""


@dataclass(frozen=True)
class Terms:
    """What else is reckoned with."""

    startup: Fraction
    """Hours until a worker does its first request; they are paid."""
    margin: Fraction
    """Added to the work, as a part of it: for stragglers, retries, and what is lost with a worker."""
    hourly: Fraction | None = None
    """Price of a worker for an hour."""
    preemptions: Fraction = Fraction(0)
    """How often in an hour of its work a worker is taken away; the start of its replacement is paid too."""


@dataclass(frozen=True)
class Estimate:
    """What so many workers take."""

    workers: int
    hours: Fraction
    worker_hours: Fraction
    price: Fraction | None


def work_hours(work: Work, speed: WorkerSpeed, terms: Terms) -> Fraction:
    """Hours that one worker takes after its first start, with the margin and with the starts after preemptions.

    Raises ConfigError where a speed that is needed is not known.
    """
    if work.generated_tokens and not speed.generated:
        raise ConfigError("--tokens_per_second is missing: takes the tokens that one worker generates per second")
    if not work.generated_tokens and not speed.prompt:
        raise ConfigError(
            "--prompt_tokens_per_second is missing: takes the prompt tokens that one worker reads per second"
        )
    seconds = work.generated_tokens / speed.generated if speed.generated else Fraction(0)
    seconds += work.prompt_tokens / speed.prompt if speed.prompt else Fraction(0)
    return seconds * (1 + terms.margin) * (1 + terms.preemptions * terms.startup) / _HOUR


def with_workers(hours_of_one: Fraction, workers: int, terms: Terms) -> Estimate:
    """What `workers`, that start together and share the work evenly, take."""
    hours = terms.startup + hours_of_one / workers
    worker_hours = hours * workers
    price = None if terms.hourly is None else worker_hours * terms.hourly
    return Estimate(workers, hours, worker_hours, price)


def for_deadline(hours_of_one: Fraction, deadline: Fraction, terms: Terms) -> Estimate:
    """The fewest workers that are done in `deadline` hours; raises ConfigError where none are."""
    left = deadline - terms.startup
    if left <= 0:
        raise ConfigError(
            f"--deadline: {_shown(deadline)} is not longer than a worker's start"
            f" ({_shown(terms.startup)}); allow more, or lower --startup_minutes"
        )
    workers = max(math.ceil(hours_of_one / left), 1)
    if workers > _MOST_WORKERS:
        raise ConfigError(
            f"--deadline: {_shown(deadline)} take {workers:,} workers, and a plan has at most {_MOST_WORKERS:,};"
            " allow more"
        )
    return with_workers(hours_of_one, workers, terms)


def _shown(hours: Fraction) -> str:
    """As --deadline takes them: whole hours, else minutes."""
    return f"{hours.numerator}h" if hours.denominator == 1 else f"{float(hours * 60):g}m"


def ladder(hours_of_one: Fraction, terms: Terms) -> list[Estimate]:
    """Estimates for 1, 2, 4, … workers, as long as they do more than start; ten at most."""
    counts = [2**step for step in range(10)]
    busy = [count for count in counts if hours_of_one / count >= terms.startup / _IDLE]
    return [with_workers(hours_of_one, count, terms) for count in busy or [1]]

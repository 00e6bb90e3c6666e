"""A plan, as text and as JSON: what was found, what follows, and what was assumed for it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from millrace.model_manager.wire.backends import Backend

from ..flags.machines import GpuRequest
from .estimate import Estimate, Terms, Work, WorkerSpeed
from .prices import Prices
from .token_counts import TokenCounts


@dataclass(frozen=True)
class Machine:
    """A worker."""

    name: str
    gpu: GpuRequest | None
    disk_gb: int

    def __str__(self) -> str:
        gpus = f" with {self.gpu.count} × {self.gpu.gpu.name}" if self.gpu else ""
        return f"{self.name}{gpus}, {self.disk_gb} GB of disk"


@dataclass(frozen=True)
class Plan:
    """Everything that was found and reckoned."""

    counted: TokenCounts
    work: Work
    generated_by: str
    """Where the tokens that a row generates are from."""
    speed: WorkerSpeed
    measured: str
    """Where the speed is from."""
    backend: Backend
    machine: Machine
    prices: Prices | None
    parts: dict[str, Fraction]
    """The parts of a worker's price for an hour."""
    terms: Terms
    estimates: list[Estimate]


def as_text(plan: Plan) -> list[str]:
    """The plan as lines of text."""
    return [*_work(plan), *_terms(plan), "", *_estimates(plan), "", *(f"assumed: {each}" for each in assumptions(plan))]


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values. Hours and money are numbers, not rounded."""
    counted, speed = plan.counted, plan.speed
    return {
        "input": {
            "rows": counted.rows.rows,
            "rows_exact": counted.rows.exact,
            "sampled": counted.sampled,
            "unreadable": counted.unreadable,
            "prompt_tokens": round(plan.work.prompt_tokens),
            "prompt_tokens_mean_error": counted.prompt_error,
            "generated_tokens": round(plan.work.generated_tokens),
            "generated_by": plan.generated_by,
        },
        "worker": {
            "machine_type": plan.machine.name,
            "backend": plan.backend.name,
            "gpu": f"{plan.machine.gpu.gpu.name}:{plan.machine.gpu.count}" if plan.machine.gpu else None,
            "disk_size_gb": plan.machine.disk_gb,
            "tokens_per_second": _number(speed.generated),
            "prompt_tokens_per_second": _number(speed.prompt),
            "measured": plan.measured,
            "hourly": _number(plan.terms.hourly),
            "hourly_parts": {name: float(price) for name, price in plan.parts.items()},
        },
        "currency": plan.prices.currency if plan.prices else None,
        "prices_checked": plan.prices.checked.isoformat() if plan.prices else None,
        "startup_hours": float(plan.terms.startup),
        "margin": float(plan.terms.margin),
        "preemptions_per_hour": float(plan.terms.preemptions),
        "estimates": [
            {
                "workers": each.workers,
                "hours": float(each.hours),
                "worker_hours": float(each.worker_hours),
                "price": _number(each.price),
            }
            for each in plan.estimates
        ],
        "assumptions": assumptions(plan),
    }


def assumptions(plan: Plan) -> list[str]:
    """What the figures rest on, one sentence each."""
    counted, terms = plan.counted, plan.terms
    found = [f"what rows generate is {plan.generated_by}"]
    if counted.sampled < counted.rows.rows:
        mean = counted.prompt_tokens / counted.readable
        within = 100 * counted.prompt_error / mean
        found.append(
            f"the {counted.sampled:,} rows that were counted stand for all (mean of prompt tokens within {within:.1f}"
            " %, 19 times out of 20)"
        )
    if plan.speed.prompt is None:
        found.append("the speed was measured on prompts and outputs of like lengths, on this machine and this model")
    found += _of_engine(plan.backend, on_gpu=plan.machine.gpu is not None)
    found += [
        f"a worker starts in {float(terms.startup) * 60:g} minutes; {float(terms.margin):.0%} is added to the work",
        "workers start together, share the work evenly, and end together; the service's limits and quotas allow them",
        "no prompt's beginning is in the cache of another worker",
        _of_preemptions(terms),
    ]
    if plan.prices:
        found.append(
            f"prices are as checked on {plan.prices.checked}; what is not in them is not counted (shuffle, storage,"
            " network, the workers of other steps)"
        )
    return found


def _of_preemptions(terms: Terms) -> str:
    if not terms.preemptions:
        return "no worker is preempted"
    rate = float(terms.preemptions)
    return (
        f"a worker is preempted {rate:g} times an hour and replaced at once; the rows that it had open, and that are"
        " computed again, are within the margin"
    )


def _of_engine(backend: Backend, *, on_gpu: bool) -> list[str]:
    """What is not known of another engine before it runs."""
    if backend.servers == "remote":
        return ["a worker loads no model; what its servers do and cost is not in the figures"]
    if backend.is_ours:
        return []
    found = [f"the machine is chosen by the size of the weights: what {backend.name} takes beside them is not known"]
    if backend.cuda_packages and not on_gpu:
        found.append(f"{backend.name} computes on CPUs, as there is no --gpu")
    return found


def _work(plan: Plan) -> list[str]:
    counted = plan.counted
    bad = f", {counted.unreadable:,} of {counted.sampled:,} counted are no prompts" if counted.unreadable else ""
    prompt = f"{round(plan.work.prompt_tokens):,} of prompts"
    return [
        f"rows     {counted.rows}{bad}",
        f"tokens   {prompt}, {round(plan.work.generated_tokens):,} generated",
    ]


def _terms(plan: Plan) -> list[str]:
    generated, read = plan.speed.generated, plan.speed.prompt
    speeds = [f"{float(generated):,.0f} generated" if generated else "", f"{float(read):,.0f} read" if read else ""]
    lines = [
        *([] if plan.backend.is_ours else [f"engine   {plan.backend.name}"]),
        f"worker   {plan.machine}",
        f"speed    {', '.join(filter(None, speeds))} tokens/s a worker ({plan.measured})",
    ]
    if plan.prices and plan.terms.hourly is not None:
        parts = ", ".join(f"{name} {float(price):.4f}" for name, price in plan.parts.items())
        lines.append(f"price    {float(plan.terms.hourly):.4f} {plan.prices.currency} an hour ({parts})")
    return lines


def _estimates(plan: Plan) -> list[str]:
    money = plan.prices.currency if plan.prices else ""
    lines = [f"{'workers':>8}{'hours':>10}{'worker hours':>14}" + (f"{money:>12}" if money else "")]
    for each in plan.estimates:
        price = "" if each.price is None else f"{float(each.price):>12,.2f}"
        lines.append(f"{each.workers:>8,}{float(each.hours):>10,.2f}{float(each.worker_hours):>14,.2f}{price}")
    return lines


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)

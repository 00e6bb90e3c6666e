"""The words for what a job came to, once: its progress, `millrace top`, its summary and its report say the same things
in them. The page's script (serving/window/static/panels.js) has the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.model_manager.wire.errors import counted

from ..pages.texts import duration, percent

_MEASURABLE = 1.0
"""Seconds of a job whose speed is told."""
_MOST_REASONS = 4


def rows_of(rows: int, total: int | None, *, exact: bool = True) -> str:
    """`120 of 500 rows`; `120 of ≈ 500 rows` of an estimated total, `120 rows` of none."""
    return f"{rows:,} of {'' if exact else '≈ '}{counted(total, 'row')}" if total else counted(rows, "row")


def rows_per_s(value: float) -> str:
    """`41.0 rows/s`."""
    return f"{value:,.1f} rows/s"


def tokens_per_s(value: float) -> str:
    """`1,234 tokens/s`."""
    return f"{value:,.0f} tokens/s"


def left(seconds: float | None) -> str:
    """`0:48 left`; empty if that is not known."""
    return "" if seconds is None else f"{duration(seconds)} left"


def speeds(rows: int, tokens: int, seconds: float) -> list[str]:
    """None of a job of less than a second, which says nothing of a longer one; tokens where some are generated."""
    if seconds < _MEASURABLE:
        return []
    return [rows_per_s(rows / seconds), *([tokens_per_s(tokens / seconds)] if tokens else [])]


def generated(tokens: int) -> str:
    """`1,000 generated`: tokens."""
    return f"{tokens:,} generated"


def tokens_of(prompt: int, cached: int, made: int, again: int = 0) -> str:
    """`2,000 prompt tokens (500 from the cache), 1,000 generated`, and `; 250 computed again (10 %)` if there are."""
    told = f"; {computed_again(again, prompt - cached + made)}" if again else ""
    return f"{counted(prompt, 'prompt token')} ({cached:,} from the cache), {generated(made)}{told}"


def computed_again(again: int, delivered: int) -> str:
    """`250 computed again (10 %)`: tokens beside the ones that had to be computed."""
    return f"{again:,} computed again ({percent(again / max(1, delivered))})"


def answered(rows: int, failed: int) -> str:
    """`10 rows answered, 2 failed`."""
    return f"{counted(rows, 'row')} answered, {failed:,} failed"


def reasons(failures: Mapping[str, int]) -> str:
    """The commonest classes of errors, each with its rows: `12 InvalidRequest, 1 PromptTooLong`; empty if none."""
    ordered = sorted(failures.items(), key=lambda each: (-each[1], each[0]))
    told = [f"{rows:,} {name}" for name, rows in ordered[:_MOST_REASONS]]
    rest = sum(rows for _, rows in ordered[_MOST_REASONS:])
    return ", ".join([*told, *([f"{rest:,} of other classes"] if rest else [])])


AGAIN = "after preemptions and deaths of engines and managers"
"""Which tokens were computed again."""
STARTUP = "model load included"
"""What the seconds before the first request are spent on."""
RAN = "first request to last result"
"""What the seconds of a job are."""

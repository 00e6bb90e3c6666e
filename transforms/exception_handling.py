"""`with_exception_handling()`: results and dead letters as two outputs, as Beam's ParDo does.

answers, failed = prompts | Generate("org/model").with_exception_handling(threshold=0.01)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import apache_beam as beam
from apache_beam.transforms.trigger import DefaultTrigger
from apache_beam.transforms.window import GlobalWindow, GlobalWindows

from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError, counted

from .elements.completions import DeadLetter


class Outputs(tuple[Any, ...]):
    """Results and dead letters: a pair, and by tag, as in `outputs["bad"]` or `outputs.bad`."""

    _fields: tuple[str, ...] = ()
    """The tags. Beam names the outputs of a composite by this attribute of a tuple."""

    @classmethod
    def tagged(cls, outputs: dict[str, Any]) -> Self:
        """The outputs in their order."""
        made = cls(outputs.values())
        made.__dict__.update(outputs, _fields=tuple(outputs))
        return made

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(self._fields.index(index) if index in self._fields else index)


class ExceptionHandling(NamedTuple):
    """The arguments of ParDo's `with_exception_handling` that apply to rows and prompts."""

    main_tag: str = "good"
    dead_letter_tag: str = "bad"
    threshold: float = 1
    threshold_windowing: Any = None

    def checked(self) -> Self:
        """Raises ConfigError for a value that has no meaning."""
        if self.main_tag == self.dead_letter_tag:
            raise ConfigError(f"main_tag and dead_letter_tag are both {self.main_tag!r}: they take two names")
        if not isinstance(self.threshold, int | float) or not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold={shown(self.threshold)}: takes a share from 0 to 1; 1 never fails the job")
        return self

    def outputs(self, results: Any, dead_letters: Any) -> Outputs:
        """Both by their tags. With a threshold, the pipeline fails where more than that share are dead letters."""
        if self.threshold < 1:
            _ = (results, dead_letters) | "Threshold" >> _Threshold(self.threshold, self.threshold_windowing)
        return Outputs.tagged({self.main_tag: results, self.dead_letter_tag: dead_letters})


class HandlesExceptions(beam.PTransform):
    """A transform that fails its job at what it cannot do, or gives dead letters of that."""

    _handling: ExceptionHandling | None = None

    def with_exception_handling(
        self,
        main_tag: str = "good",
        dead_letter_tag: str = "bad",
        *,
        threshold: float = 1,
        threshold_windowing: Any = None,
    ) -> Self:
        """Give `(results, dead_letters)`, also by the tags; nothing fails the job, unless `fail_fast`.

        `threshold`, a share from 0 to 1: the job fails where more of the rows of a window fail. It counts in the
        windows of the input, or in `threshold_windowing`. As ParDo's arguments of these names.
        """
        self._handling = ExceptionHandling(main_tag, dead_letter_tag, threshold, threshold_windowing).checked()
        return self

    def _outputs(self, results: Any, dead_letters: Any) -> Any:
        return self._handling.outputs(results, dead_letters) if self._handling else results


class _Failed(NamedTuple):
    number: int
    first: str
    """One of them, the same in any order."""


class _Threshold(beam.PTransform):
    """Fails where `failed > total * threshold`, in each window at its end; every prompt and row counts once."""

    def __init__(self, threshold: float, windowing: Any) -> None:
        super().__init__()
        self._threshold = threshold
        self._windowing = windowing

    def expand(self, outputs: Any) -> Any:
        results, dead_letters = (self._windowed(*each) for each in zip(("Good", "Bad"), outputs, strict=True))
        total = (results, dead_letters) | "All" >> beam.Flatten()
        number = total | "Count all" >> beam.CombineGlobally(beam.combiners.CountCombineFn()).as_singleton_view()
        failed = dead_letters | "One" >> beam.Map(_failed) | "Sum" >> beam.CombineGlobally(_sum).without_defaults()
        return failed | "Check" >> beam.Map(_check, number, self._threshold)

    def _windowed(self, label: str, elements: Any) -> Any:
        if self._windowing is not None:
            return elements | f"{label} windows" >> beam.WindowInto(self._windowing)
        windowing = elements.windowing
        endless = not elements.is_bounded and isinstance(windowing.windowfn, GlobalWindows)
        if endless and windowing.triggerfn == DefaultTrigger():
            raise ConfigError(
                f"threshold={self._threshold} on a stream in the global window, which never ends: add "
                "threshold_windowing=FixedWindows(60), or window the stream"
            )
        return elements


def _failed(element: Any) -> _Failed:
    letter: DeadLetter = element[1] if isinstance(element, tuple) else element
    return _Failed(1, f"{letter.id or letter.source}: {letter.error}: {letter.reason}")


def _sum(parts: Iterable[_Failed]) -> _Failed:
    parts = list(parts)
    return _Failed(sum(each.number for each in parts), min(each.first for each in parts))


def _check(failed: _Failed, total: int, threshold: float, window: Any = beam.DoFn.WindowParam) -> None:
    if failed.number > total * threshold:
        where = "" if isinstance(window, GlobalWindow) else f" in the window {window}"
        raise ValueError(
            f"{failed.number:,} of {counted(total, 'row')} failed{where}, more than threshold={threshold} allows; one "
            f"of them: {failed.first}"
        )

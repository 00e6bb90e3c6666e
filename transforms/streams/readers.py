"""Starts the readers of a broker's stream on whichever workers the runner chooses. Knows no broker.

source ─► its readers, each with where it begins ─► redistribute ─► each reads, for as long as the job runs
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import TimestampedValue

from ..elements.completions import StructCoder
from ..runners import finish_bundles_before_checkpoints, has_checkpoints
from .broker_messages import AddressT, BrokerMessage, ConnectedDoFn, ConnectionT
from .unbounded import END, FROM_START, OWN_WATERMARK, PositionTracker, ReadingTurn, StreamTime, pause

_listeners: list[Callable[[], None]] = []
_set_up = weakref.WeakSet["ReaderDoFn[Any, Any]"]()
_setting_up = threading.Lock()
"""Held by whoever changes or copies `_set_up`: no set can be copied while another thread adds to it."""


@contextmanager
def when_reading(call: Callable[[], None]) -> Iterator[None]:
    """While the block runs, `call` is called each time that a reader in this process begins to read.

    Readers reach a runner pickled, so they cannot hold the callback themselves.
    """
    _listeners.append(call)
    try:
        yield
    finally:
        _listeners.remove(call)


def tell_reading() -> None:
    """A reader begins to read."""
    for call in tuple(_listeners):
        call()


def give_back_uncommitted() -> None:
    """Have this process's readers give back what they hold, at the end of a job whose runner may not have told them."""
    with _setting_up:
        readers = list(_set_up)
    for reader in readers:
        reader.give_back()


class Reader(msgspec.Struct, frozen=True):
    """One of several readers of the same source."""

    number: int
    """Number of a partition, if the source has partitions."""
    start: int = 0
    """The position at which the job begins."""


beam.coders.registry.register_coder(Reader, StructCoder)


def spread(
    root: Any,
    source: Any,
    readers_of: Callable[[Any], Iterable[Reader]],
    do_fn: type[ReaderDoFn[Any, Any]],
    drain: str | None,
) -> Any:
    """The Messages of a source, as all its readers read them."""
    finish_bundles_before_checkpoints(root.pipeline.options)
    read = do_fn(source, drain, late=has_checkpoints(root.pipeline.options))
    return (
        root
        | "Source" >> beam.Create([source])
        | "Readers" >> beam.FlatMap(readers_of).with_output_types(Reader)
        | "Spread" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(read).with_output_types(BrokerMessage)
    )


WhenFinal = Callable[[], None]
"""What the broker is told when the bundle is final."""
ReadSteps = Generator[TimestampedValue, None, WhenFinal | None]


class ReaderDoFn(ConnectedDoFn[AddressT, ConnectionT]):
    """Readers → their messages."""

    def __init__(self, source: AddressT, drain: str | None, *, late: bool) -> None:
        """`drain`: as for ReadMessages. `late`: bundles are final as Flink has it (unbounded.Finals)."""
        super().__init__(source)
        self._drain = drain
        self._late = late

    def setup(self) -> None:
        super().setup()
        with _setting_up:
            _set_up.add(self)
        tell_reading()

    def give_back(self) -> None:
        """Give back what is read and not committed, if the broker leases it. A bundle may be running still."""

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        reader: Reader,
        finalizer: Any = beam.DoFn.BundleFinalizerParam,
        tracker: Any = FROM_START,
        estimator: Any = OWN_WATERMARK,
    ) -> Iterator[Any]:
        turn = ReadingTurn(self._drain)
        when_final = yield from self.read(reader, turn, tracker, StreamTime(estimator))
        if when_final is not None:
            finalizer.register(when_final)
        if not turn.is_last or tracker.try_claim(END):
            tracker.defer_remainder(pause(reader.number))

    def read(self, reader: Reader, turn: ReadingTurn, tracker: PositionTracker, times: StreamTime) -> ReadSteps:
        """A turn's messages, each claimed. Returns the function to call when the bundle is final, or None."""
        raise NotImplementedError(type(self).__name__)

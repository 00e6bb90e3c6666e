"""The opt-in way to wait for long generations on streams: Beam state holds the elements in flight, a timer polls them.

element ─► a key of its own ─► process: submit, keep, set a timer ─► timer: done? emit, forget : set it again

No bundle is held open for an answer, so a runner can commit, checkpoint and drain while a generation runs for minutes.
A restarted worker finds its elements in the runner's state and submits them again under the same ids: the manager
attaches them to the requests that run or are done, so nothing is computed twice. A result has its own element's
timestamp, windows and pane. The timer holds the watermark at that timestamp until the result is emitted.

Takes a stream, and a runner that fires real-time timers. Local runners do not fire them: there the output stays empty,
or the job fails.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator, Iterator
from time import monotonic
from time import time as wall_clock
from typing import Any

import apache_beam as beam
from apache_beam.coders.coders import BytesCoder, Coder, WindowedValueCoder
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.shared import Shared
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.sampling import SamplingParams

from ..elements.completions import DEAD_LETTERS
from ..models.shared_model import Lease, SharedModel
from ..models.summary_counters import count
from ..runners import TRIED, running
from .element_requests import ElementRequests, InFlight, OnFailure, OwnWindows, PreparedRequest, Task
from .retry_ids import RequestIds

_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 2.0
"""Seconds from look to look."""
_MAX_UNCLAIMED = 10_000
_LOOK = TimerSpec("look", TimeDomain.REAL_TIME)
_LOOK_TIMER = beam.DoFn.TimerParam(_LOOK)
_KEPT_STATE = beam.DoFn.StateParam(ReadModifyWriteStateSpec("kept", BytesCoder()))


class StatefulRequests(beam.PTransform):
    """Elements → results, as AsyncRequestDoFn gives them, in the windows of the elements, by a StatefulRequestDoFn."""

    def __init__(self, model: SharedModel, task: Task, params: SamplingParams, job: str, on_failure: OnFailure) -> None:
        """As for AsyncRequestDoFn."""
        super().__init__()
        self._arguments = (model, task, params, job, on_failure)

    def expand(self, prompts: Any) -> Any:
        check_keeps_state(prompts.pipeline)
        if prompts.is_bounded:
            raise ConfigError("stateful=True: takes a stream; at the end of input, Flink drops timers of real time")
        windowing = prompts.windowing
        value_coder = beam.coders.registry.get_coder(prompts.element_type)
        coder = WindowedValueCoder(value_coder, windowing.windowfn.get_window_coder())
        keyed = prompts | "Key" >> beam.ParDo(_Key(coder)).with_output_types(tuple[str, bytes])
        # No state is dropped because a window is over. WindowInto would do that here, but would give the results below
        # windows by their timestamps, where they have their elements' windows.
        keyed._windowing = Windowing(GlobalWindows())
        outputs = keyed | "Requests" >> beam.ParDo(StatefulRequestDoFn(coder, *self._arguments)).with_outputs(
            DEAD_LETTERS, main="results"
        )
        for output in (outputs.results, outputs[DEAD_LETTERS]):
            output._windowing = windowing
        return outputs


def check_keeps_state(pipeline: beam.Pipeline) -> None:
    """Raises ConfigError for a runner without timers of real time."""
    embedded = pipeline.options.view_as(PortableOptions).job_endpoint == "embed"  # the local runner again
    if embedded or not running(pipeline.runner).fires_timers:
        raise ConfigError(
            f"stateful=True: {type(pipeline.runner).__name__} is not known to fire timers of real time, so nothing "
            f"might come out; takes {', '.join(each.name for each in TRIED if each.fires_timers)}, or stateful=False"
        )


class _Key(beam.DoFn):
    """Each element, with its timestamp, windows and pane as bytes, under a key of its own."""

    def __init__(self, coder: Coder) -> None:
        self._coder = coder

    def process(self, element: Any, windowed: Any = beam.DoFn.WindowedValueParam) -> Iterator[WindowedValue]:
        encoded = self._coder.encode(windowed.with_value(element))
        keyed = WindowedValue((uuid.uuid4().hex, encoded), windowed.timestamp, OwnWindows((GlobalWindow(),)))
        yield keyed


class StatefulRequestDoFn(beam.DoFn):
    """(a key of its own, an encoded element) → the task's results."""

    def __init__(
        self, coder: Coder, model: SharedModel, task: Task, params: SamplingParams, job: str, on_failure: OnFailure
    ) -> None:
        """`coder`: of the elements, as windowed values."""
        self._coder = coder
        self._model = model
        self._requests = ElementRequests(task, params, on_failure, model.seeds, model.traces)
        self._job = job
        self._shared_outstanding = Shared()

    def setup(self) -> None:
        self._requests.setup()
        self._outstanding: Outstanding = self._shared_outstanding.acquire(lambda: Outstanding(self._model))
        self._outstanding.enter()

    def process(
        self,
        element: tuple[str, bytes],
        windowed: Any = beam.DoFn.WindowedValueParam,
        kept: Any = _KEPT_STATE,
        look: Any = _LOOK_TIMER,
    ) -> Iterator[Any]:
        key, encoded = element
        if (yield from self._submit(key, encoded)):
            kept.write(encoded)
            _set(look, _SHORTEST_WAIT, windowed.timestamp)

    @on_timer(_LOOK)
    def look(self, key: Any = beam.DoFn.KeyParam, kept: Any = _KEPT_STATE, look: Any = _LOOK_TIMER) -> Iterator[Any]:
        """Emit the result if the request is done, else set the timer again. Called by the runner.

        Another bundle may drop the finished request at any time; then the next look submits it again.
        """
        encoded = kept.read()
        if encoded is None:
            return
        # Unknown are requests of a worker that is gone, those of a failed attempt, and dropped ones.
        is_known = key in self._outstanding
        if not is_known and not (yield from self._submit(key, encoded)):
            kept.clear()
        elif (finished := self._outstanding.take_finished(key)) is not None:
            yield self._requests.result(self._outstanding.leased(), finished)
            kept.clear()
        else:
            wait = min(max(self._outstanding.waited(key) / 10, _SHORTEST_WAIT), _LONGEST_WAIT)
            _set(look, wait, self._coder.decode(encoded).timestamp)

    def finish_bundle(self) -> None:
        if (lease := self._outstanding.lease) is not None:
            count(lease)

    def teardown(self) -> None:
        self._outstanding.leave()

    def _submit(self, key: str, encoded: bytes) -> Generator[Any, None, bool]:
        """Submit the element, and return True; if that is impossible, yield a dead letter, and return False."""
        windowed = self._coder.decode(encoded)
        prepared = self._requests.prepare(windowed.value, windowed, RequestIds(self._job))
        if not isinstance(prepared, PreparedRequest):
            yield prepared
            return False
        submitted = self._requests.submit(self._outstanding.leased(), prepared)
        if not isinstance(submitted, InFlight):
            yield submitted
            return False
        self._outstanding.add(key, submitted)
        return True


class Outstanding:
    """Requests that the DoFns of a worker process have submitted and not emitted, by key, and their lease of the model.

    Used by many threads. A runner may move a key to another worker, which submits its request again; then nobody takes
    the result here. So if there are more than `max_unclaimed` requests, the oldest finished ones are dropped.
    """

    def __init__(self, model: SharedModel, max_unclaimed: int = _MAX_UNCLAIMED) -> None:
        self._model = model
        self._max_unclaimed = max_unclaimed
        self._lock = threading.RLock()
        self._users = 0
        self._waiting: dict[str, InFlight] = {}
        self._since: dict[str, float] = {}
        """When each was submitted, by the monotonic clock."""
        self.lease: Lease | None = None
        """None as long as there was no element."""

    def enter(self) -> None:
        """One more DoFn, which leaves at its teardown."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """A DoFn leaves. With the last one, outstanding requests are cancelled."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._cancel(list(self._waiting))
            lease, self.lease = self.lease, None
        if lease is not None:
            lease.end()

    def leased(self) -> Lease:
        """The lease of this process."""
        with self._lock:
            self.lease = self.lease or self._model.lease(self)
            return self.lease

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._waiting

    def add(self, key: str, in_flight: InFlight) -> None:
        """Note a submitted request; an earlier request of the same key is cancelled."""
        with self._lock:
            if key in self._waiting:
                self._cancel([key])
            self._waiting[key] = in_flight
            self._since[key] = monotonic()
            if len(self._waiting) > self._max_unclaimed:
                finished = [known for known, each in self._waiting.items() if each.future.done()]
                self._cancel(finished[: len(self._waiting) - self._max_unclaimed])

    def waited(self, key: str) -> float:
        """Seconds since a request was submitted; 0 if it was dropped."""
        with self._lock:
            now = monotonic()
            return now - self._since.get(key, now)

    def take_finished(self, key: str) -> InFlight | None:
        """Remove and return the key's request if it is finished; else None."""
        with self._lock:
            waiting = self._waiting.get(key)
            return self._take(key) if waiting is not None and waiting.future.done() else None

    def _cancel(self, keys: list[str]) -> None:
        for key in keys:
            in_flight = self._take(key)
            in_flight.future.cancel()
            self.leased().finish(in_flight.client)

    def _take(self, key: str) -> InFlight:
        del self._since[key]
        return self._waiting.pop(key)


def _set(timer: Any, seconds: float, hold: Timestamp) -> None:
    """Let a timer fire, and hold the watermark until then.

    By default Beam holds it at the timestamp of the call that sets the timer: for a timer that sets itself again, at
    the current time.
    """
    assert hasattr(timer, "_input_timestamp"), "Beam's timers know their hold under another name"
    timer._input_timestamp = hold
    timer.set(Timestamp.of(wall_clock() + seconds))

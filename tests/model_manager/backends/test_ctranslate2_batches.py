"""The requests that CTranslate2 gets together, and the ones that fail; a generator stands in for it."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.model_manager.backends import ctranslate2_batches
from millrace.model_manager.backends.ctranslate2_batches import BatchedGenerator
from millrace.model_manager.backends.hosted import Event
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.wire.sampling import SamplingParams
from tests.waiting import eventually


class Generator:
    """Gives all prompts of a batch the token 7, step by step, until the callback says that they are over; waits for
    `goes_on` before each batch.
    """

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.batches: list[list[int]] = []

    def generate_batch(self, prompts: list[list[str]], *, callback: Any, **_: Any) -> None:
        self.batches.append([len(prompt) for prompt in prompts])
        self.goes_on.wait()
        places, step = [*range(len(prompts))], 0
        while places:
            places = [at for at in places if not callback(SimpleNamespace(batch_id=at, token_id=7, step=step))]
            step += 1


def _submit(library: BatchedGenerator, length: int, **params: Any) -> None:
    sequence = SimpleNamespace(
        request_id=f"of {length}",
        token_ids=[1] * length,
        num_output_tokens=0,
        conditions=SimpleNamespace(max_tokens=2),
    )
    library.submit(cast(Sequence, sequence), SamplingParams(max_tokens=2, ignore_eos=True, **params))


def test_prompts_of_like_length_run_together_the_oldest_first() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=2, eos=[])
    _submit(library, 5)
    eventually(lambda: generator.batches)
    for length in (9, 3, 8, 2):
        _submit(library, length)
    generator.goes_on.set()
    eventually(lambda: len(generator.batches) == 3)
    assert generator.batches == [[5], [8, 9], [2, 3]]


class Watched(threading.Condition):
    """Knows for how long each wait may take; None for one without a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.limits.append(timeout)
        return super().wait(timeout)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has room waits for an hour."""
    monkeypatch.setattr(ctranslate2_batches, "_PAUSE", 3600.0)
    monkeypatch.setattr(ctranslate2_batches, "_LONGEST_WAIT", 3600.0)


@pytest.mark.usefixtures("patient")
def test_a_batch_that_has_room_waits_and_a_full_one_begins_at_once() -> None:
    generator, changed = Generator(), Watched()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=2, eos=[], changed=changed)
    _submit(library, 5)
    eventually(lambda: changed.limits and changed.limits[-1], "a wait for a second request")
    assert generator.batches == []
    _submit(library, 4)
    eventually(lambda: generator.batches)
    assert generator.batches == [[4, 5]]


@pytest.mark.usefixtures("patient")
def test_a_request_that_has_waited_long_enough_waits_for_no_other() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=2, eos=[])
    for length in (5, 4):
        _submit(library, length)
    eventually(lambda: generator.batches)
    _submit(library, 3)
    with library.changed:
        library.last_came -= 3600.0
    generator.goes_on.set()
    eventually(lambda: generator.batches == [[4, 5], [3]], "a batch of the third one alone")


def test_as_many_batches_run_at_once_as_there_are_replicas_and_share_what_waits() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=8, eos=[], at_once=2)
    with library.changed:  # no batch begins before all of them wait
        for length in (2, 3, 4, 5):
            _submit(library, length)
    eventually(lambda: len(generator.batches) == 2, "a second batch while the first one is held")
    assert sorted(generator.batches) == [[2, 3], [4, 5]]
    generator.goes_on.set()
    assert sorted({event.request_id for event in _events(library, ended=4)}) == ["of 2", "of 3", "of 4", "of 5"]


def test_a_batch_has_one_set_of_parameters_and_each_request_its_own_tokens() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=8, eos=[])
    _submit(library, 5)
    eventually(lambda: generator.batches)
    for length, temperature in ((4, 0.0), (3, 1.0), (2, 0.0)):
        _submit(library, length, temperature=temperature)
    generator.goes_on.set()
    told: list[tuple[str, bool]] = []

    def all_told() -> bool:
        told.extend((event.request_id, event.finished) for event in library.poll())
        return len(told) == 8

    eventually(all_told)
    assert generator.batches == [[5], [2, 4], [3]]
    assert sorted(told) == sorted((f"of {length}", over) for length in (2, 3, 4, 5) for over in (False, True))


def test_the_tokens_of_a_step_of_a_batch_are_told_together() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=8, eos=[])
    for length in (3, 4, 5):
        _submit(library, length)
    eventually(lambda: generator.batches)
    generator.goes_on.set()
    eventually(lambda: library.events.qsize() == 2)
    told = [library.events.get(), library.events.get()]
    assert [[event.finished for _, event in cast(list[Any], each)] for each in told] == [[False] * 3, [True] * 3]


class Refusing(Generator):
    """Fails each batch that holds a prompt of `length` tokens, after it has told so many tokens of the first one."""

    def __init__(self, length: int, error: Exception, told: int = 0) -> None:
        super().__init__()
        self.goes_on.set()
        self.length, self.error, self.told = length, error, told

    def generate_batch(self, prompts: list[list[str]], *, callback: Any, **_: Any) -> None:
        if self.length in map(len, prompts):
            self.batches.append([len(prompt) for prompt in prompts])
            for _each in range(self.told):
                callback(SimpleNamespace(batch_id=0, token_id=7, step=0))
            raise self.error
        super().generate_batch(prompts, callback=callback)


def _events(library: BatchedGenerator, ended: int) -> list[Event]:
    """What it tells until so many requests have ended."""
    told: list[Event] = []

    def all_ended() -> bool:
        told.extend(library.poll())
        return sum(event.finished or event.error is not None for event in told) == ended

    eventually(all_ended)
    return told


def test_of_a_refused_batch_only_the_request_that_is_refused_alone_fails() -> None:
    generator = Refusing(3, ValueError("the prompt is   odd"))
    library = BatchedGenerator(generator, ["a", "b"], batch_size=8, eos=[])
    for length in (2, 3, 4):
        _submit(library, length)
    told = _events(library, ended=3)
    assert generator.batches == [[2, 3, 4], [2], [3], [4]]
    assert {event.request_id: str(event.error) for event in told if event.error is not None} == {
        "of 3": "CTranslate2: the prompt is odd"
    }
    assert sorted(event.request_id for event in told if event.finished) == ["of 2", "of 4"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CUDA failed with error out of memory"), 0),
        (RuntimeError("std::bad_alloc"), 0),
        (MemoryError(), 0),
        (ValueError("of a batch that had begun"), 1),
    ],
)
def test_what_is_the_engines_fault_ends_the_process_and_no_request(error: Exception, told: int) -> None:
    library = BatchedGenerator(Refusing(3, error, told), ["a", "b"], batch_size=8, eos=[])
    for length in (2, 3):
        _submit(library, length)

    def raised() -> bool:
        try:
            assert not [event for event in library.poll() if event.finished or event.error is not None]
        except type(error) as found:
            return found is error
        return False

    eventually(raised)


class Counted(queue.SimpleQueue[Any]):
    """Counts the waits that ended with nothing."""

    empty_waits = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(block, timeout)
        except queue.Empty:
            self.empty_waits += 1
            raise


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_step_lasts_as_long_as_a_batch_tells_nothing_for_long(cancelled: bool) -> None:
    generator, events = Generator(), Counted()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=1, eos=[], events=events, silence=0.0)
    _submit(library, 5)
    eventually(lambda: generator.batches)
    if cancelled:
        library.cancel("of 5")
        _submit(library, 4)
    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(library.poll)
        try:
            eventually(lambda: polled.done() or events.empty_waits > 3, "a long wait")
            assert not polled.done()
        finally:
            generator.goes_on.set()
        told = polled.result()
    names = {event.request_id for event in [*told, *_events(library, 1 - sum(event.finished for event in told))]}
    assert names == {"of 4" if cancelled else "of 5"}


def test_until_then_steps_end_so_that_deadlines_and_requests_go_on() -> None:
    generator = Generator()
    library = BatchedGenerator(generator, ["a", "b"], batch_size=1, eos=[])
    _submit(library, 5)
    eventually(lambda: generator.batches)
    assert library.poll() == []
    generator.goes_on.set()
    assert {event.request_id for event in _events(library, 1)} == {"of 5"}


@pytest.mark.usefixtures("patient")
def test_a_step_ends_while_requests_gather() -> None:
    library = BatchedGenerator(Generator(), ["a", "b"], batch_size=2, eos=[])
    _submit(library, 5)
    assert library.poll() == []

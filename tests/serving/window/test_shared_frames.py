"""The machine is looked at while somebody watches, and all viewers see the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator

import pytest

from millrace.serving.window.figures import Figures
from millrace.serving.window.shared_frames import Frame, Watching
from tests.serving.window.looks import look


class Looks:
    """A machine whose clock is the number of looks."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.count = 0

    def __call__(self) -> Figures:
        self.count = next(self._numbers)
        return look(at=float(self.count))


async def taken(watching: Watching, count: int) -> list[Frame]:
    """So many frames of a viewer that leaves then."""
    found = []
    async with contextlib.aclosing(watching.frames()) as frames:
        async for frame in frames:
            found.append(frame)
            if len(found) == count:
                break
    return found


def run(story: Callable[[Looks, Watching], Coroutine[None, None, None]]) -> None:
    async def told() -> None:
        looks = Looks()
        await asyncio.wait_for(story(looks, Watching(looks, every=0.01)), 60)

    asyncio.run(told())


def test_a_viewers_first_frame_has_the_points_before_it() -> None:
    async def story(_: Looks, watching: Watching) -> None:
        first = await taken(watching, 3)
        assert [frame.history for frame in first] == [[], None, None]
        (again,) = await taken(watching, 1)
        assert [point.at for point in again.history or []][:3] == [1.0, 2.0, 3.0]

    run(story)


def test_viewers_see_the_same_figures() -> None:
    async def story(_: Looks, watching: Watching) -> None:
        one, other = await asyncio.gather(taken(watching, 3), taken(watching, 3))
        assert [frame.figures for frame in one] == [frame.figures for frame in other]

    run(story)


def test_nobody_looks_while_nobody_watches() -> None:
    async def story(looks: Looks, watching: Watching) -> None:
        assert looks.count == 0
        before = asyncio.all_tasks()
        await taken(watching, 1)
        while asyncio.all_tasks() != before:  # the one that looks sees that nobody is there
            await asyncio.sleep(0.01)
        seen = looks.count
        await asyncio.sleep(0.05)
        assert looks.count == seen
        await taken(watching, 1)
        assert looks.count > seen

    run(story)


def test_the_end_ends_all_viewers() -> None:
    async def story(_: Looks, watching: Watching) -> None:
        viewers = [asyncio.create_task(taken(watching, 10**9)) for _ in range(3)]
        await taken(watching, 3)
        watching.end()
        assert all(await asyncio.gather(*viewers))
        assert await taken(watching, 1) == []

    run(story)


def test_a_look_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[OSError | Figures] = iter([OSError("no"), look(at=7.0)])

    def fails_once() -> Figures:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def story() -> None:
        (frame,) = await asyncio.wait_for(taken(Watching(fails_once, every=0.01), 1), 60)
        assert frame.figures.at == 7.0

    asyncio.run(story())
    assert "could not be looked at" in caplog.text

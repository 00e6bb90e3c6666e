from collections.abc import Callable

from millrace.transforms.models.ref_counted import RefCounted


class Lamp(RefCounted):
    """Goes out with its last user."""

    def __init__(self, users: int = 0) -> None:
        super().__init__(users)
        self.ended: list[bool] = []

    def _let_go(self) -> Callable[[], None]:
        return lambda: self.ended.append(self._lock.acquire(blocking=False))


def test_it_ends_once_with_the_last_user() -> None:
    lamp = Lamp()
    lamp.enter()
    lamp.enter()
    lamp.leave()
    assert not lamp.ended
    lamp.leave()
    assert lamp.ended == [True]


def test_several_uses_may_end_together() -> None:
    lamp = Lamp(users=1)
    lamp.enter()
    lamp.enter()
    lamp.leave(2)
    assert not lamp.ended
    lamp.leave()
    assert len(lamp.ended) == 1


def test_it_may_be_left_while_it_is_entered() -> None:
    """As the collector does it, in the middle of whatever runs."""
    lamp = Lamp(users=1)
    with lamp._lock:
        lamp.leave()
    assert len(lamp.ended) == 1

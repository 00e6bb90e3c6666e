"""When a server that was ready counts as hung or unhealthy: answers as a test gives them, on a clock of the test's."""

from __future__ import annotations

import pytest

from millrace.model_manager.backends.server.health import Health, NoAnswer

UNHEALTHY = "has answered 503 for 10 s (unhealthy_timeout), and no request was answered"
SILENT = "gives no answer within 20 s (hang_timeout)"
SILENCE = NoAnswer()


class Watched:
    """A server that is asked once a second, and takes `takes` seconds for each answer."""

    def __init__(self, hang_timeout: float = 20.0, unhealthy_timeout: float = 10.0) -> None:
        self.now = 0.0
        self.last_answer_at = 0.0
        self.health = Health(hang_timeout, unhealthy_timeout, lambda: self.last_answer_at, lambda: self.now)

    def failure(self, *answers: int | NoAnswer, takes: float = 0.0) -> str | None:
        """What is found at the last of these answers; nothing at the others."""
        found = None
        for answer in answers:
            assert found is None, "it was found before"
            found = self._look(answer, takes)
        return found

    def _look(self, answer: int | NoAnswer, takes: float) -> str | None:
        def ask() -> int | NoAnswer:
            self.now += takes
            return answer

        self.now += 1.0
        return self.health.failure(ask)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_answers_5xx_alone_for_long_enough_is_unhealthy(status: int) -> None:
    watched = Watched()
    assert watched.failure(200, *[status] * 10) is None
    assert watched.failure(status) == UNHEALTHY.replace("503", str(status))


def test_one_good_answer_makes_it_healthy_again() -> None:
    watched = Watched()
    for _ in range(3):
        assert watched.failure(*[503] * 9, 200) is None
    assert watched.failure(*[503] * 11) == UNHEALTHY


@pytest.mark.parametrize("status", [200, 204, 400, 404, 429])
def test_no_other_status_makes_it_unhealthy(status: int) -> None:
    assert Watched().failure(*[status] * 100) is None


def test_a_server_that_answers_requests_is_healthy_whatever_its_route_says() -> None:
    watched = Watched()
    for _ in range(5):
        assert watched.failure(*[503] * 9) is None
        watched.last_answer_at = watched.now
    assert watched.failure(*[503] * 12) == UNHEALTHY


def test_few_answers_do_not_make_it_unhealthy_however_long_they_take() -> None:
    watched = Watched()
    assert watched.failure(*[503] * 4, takes=15.0) is None
    assert watched.failure(503, takes=15.0) == UNHEALTHY


def test_silence_in_between_does_not_make_it_healthy() -> None:
    answers: list[int | NoAnswer] = [503, SILENCE]
    assert Watched().failure(*answers * 5, 503) == UNHEALTHY


def test_a_server_hangs_once_it_is_silent_for_long_enough() -> None:
    assert Watched().failure(200, SILENCE, takes=20.0) == SILENT
    watched, refused = Watched(), NoAnswer("the connection is refused")  # which takes no time
    assert watched.failure(*[refused] * 20, 200) is None
    assert watched.failure(*[refused] * 21) == f"{SILENT}: the connection is refused"


def test_it_is_asked_several_times_before_it_can_be_hung_or_unhealthy() -> None:
    assert Watched(hang_timeout=120, unhealthy_timeout=30).health.interval == 6
    assert Watched(hang_timeout=4, unhealthy_timeout=30).health.interval == 1

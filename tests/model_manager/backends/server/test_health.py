"""When a server that was ready counts as hung or ill: answers as a test gives them, on a clock of the test's."""

from __future__ import annotations

import pytest

from millrace.model_manager.backends.server.health import Health, NoAnswer

ILL = "has answered 503 for 10 s (unhealthy_timeout), and no request was answered"
SILENT = "gives no answer within 20 s (hang_timeout)"
SILENCE = NoAnswer()


class Watched:
    """A server that is asked once a second, and takes `takes` seconds for each answer."""

    def __init__(self, hang_timeout: float = 20.0, unhealthy_timeout: float = 10.0) -> None:
        self.now = 0.0
        self.worked_at = 0.0
        self.health = Health(hang_timeout, unhealthy_timeout, lambda: self.worked_at, lambda: self.now)

    def trouble(self, *answers: int | NoAnswer, takes: float = 0.0) -> str | None:
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
        return self.health.trouble(ask)


@pytest.mark.parametrize("status", [500, 503])
def test_5xx_alone_for_long_enough_is_an_illness(status: int) -> None:
    watched = Watched()
    assert watched.trouble(200, *[status] * 10) is None
    assert watched.trouble(status) == ILL.replace("503", str(status))


def test_one_good_answer_ends_an_illness() -> None:
    watched = Watched()
    for _ in range(3):
        assert watched.trouble(*[503] * 9, 200) is None
    assert watched.trouble(*[503] * 11) == ILL


@pytest.mark.parametrize("status", [200, 204, 400, 404, 429])
def test_no_other_status_is_an_illness(status: int) -> None:
    assert Watched().trouble(*[status] * 100) is None


def test_a_server_that_answers_requests_is_not_ill_whatever_its_route_says() -> None:
    watched = Watched()
    for _ in range(5):
        assert watched.trouble(*[503] * 9) is None
        watched.worked_at = watched.now
    assert watched.trouble(*[503] * 12) == ILL


def test_few_answers_are_no_illness_however_long_they_take() -> None:
    watched = Watched()
    assert watched.trouble(*[503] * 4, takes=15.0) is None
    assert watched.trouble(503, takes=15.0) == ILL


def test_silence_in_between_ends_no_illness() -> None:
    answers: list[int | NoAnswer] = [503, SILENCE]
    assert Watched().trouble(*answers * 5, 503) == ILL


def test_a_server_hangs_once_it_is_silent_for_long_enough() -> None:
    assert Watched().trouble(200, SILENCE, takes=20.0) == SILENT
    watched, refused = Watched(), NoAnswer("the connection is refused")  # which takes no time
    assert watched.trouble(*[refused] * 20, 200) is None
    assert watched.trouble(*[refused] * 21) == f"{SILENT}: the connection is refused"


def test_it_is_asked_several_times_before_it_can_be_hung_or_ill() -> None:
    assert Watched(hang_timeout=120, unhealthy_timeout=30).health.interval == 6
    assert Watched(hang_timeout=4, unhealthy_timeout=30).health.interval == 1

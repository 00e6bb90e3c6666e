from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hang_ups
from benchmarks.hang_ups import Crowd, EndedTooSoon
from tests.waiting import eventually

_WITHIN = 300.0
"""Seconds; far more than it takes on an idle machine."""


def test_hang_ups_in_streams_and_before_whole_answers_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.hang_ups", "--sides", "fake", "--clients", "2", "--count", "4"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_WITHIN)
    told = json.loads(run.stdout.splitlines()[-1])
    found = told["milliseconds"]["fake"]
    assert found.keys() == {"stream", "whole"}
    assert all(0 < kind["p50"] <= kind["p95"] <= kind["max"] for kind in found.values())
    assert told["ended"] == {"fake": 0}


def test_requests_that_end_before_their_hang_up_are_counted_and_are_no_hang_ups() -> None:
    def hang_up(number: int) -> float | None:
        if number % 3 == 0:
            raise EndedTooSoon
        return None if number % 3 == 1 else float(number)

    assert hang_ups.hang_ups(hang_up, 3) == ([2.0, 5.0, 8.0], 2)


def test_a_measurement_in_which_no_hang_up_counts_ends() -> None:
    with pytest.raises(SystemExit, match="0 of 33 hang-ups count"):
        hang_ups.hang_ups(lambda _: None, 3)


class Looks:
    """What the manager says at each look: requests outstanding, the last number from then on. At the look `asks`, from
    1, a client of the crowd has asked again; never at 0.
    """

    def __init__(self, outstanding: list[int], asks: int) -> None:
        self.began = 2
        self._outstanding = outstanding
        self._asks = asks
        self._looks = 0

    def __call__(self, _runtime: Path) -> int:
        self._looks += 1
        self.began += self._looks == self._asks
        return self._outstanding[min(self._looks, len(self._outstanding)) - 1]


def _hung_up(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> float | None:
    """A hang-up beside a crowd of two clients. The third look comes just before it."""
    ours, server = socket.socketpair()
    monkeypatch.setattr(hang_ups, "_outstanding", looks)
    monkeypatch.setattr(hang_ups, "connected", lambda _port: ours)
    monkeypatch.setattr(hang_ups, "_SETTLED", (0.0, 0.0))
    monkeypatch.setattr(hang_ups, "_POLL", 0.0)
    crowd: Any = looks
    with server:
        return hang_ups.hung_up(0, Path(), crowd, 2, 1, stream=False)


def test_the_end_of_a_stream_whose_client_has_not_asked_again_is_no_end_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after_the_hang_up = [2, 3, 3, 2, 2, 3, 3, 2]
    assert _hung_up(Looks(after_the_hang_up, asks=6), monkeypatch) is None
    before_the_hang_up = [2, 3, 2, 2, 3, 3, 2]
    assert _hung_up(Looks(before_the_hang_up, asks=5), monkeypatch) is None


def test_the_end_of_the_request_itself_counts_or_came_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = _hung_up(Looks([2, 3, 3, 3, 2], asks=0), monkeypatch)
    assert seconds is not None
    assert seconds > 0
    with pytest.raises(EndedTooSoon):
        _hung_up(Looks([2, 3, 2], asks=0), monkeypatch)


def test_what_never_comes_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_ups, "_WITHIN", 0.01)
    with pytest.raises(SystemExit, match="no sign of a request within"):
        hang_ups._wait_until(lambda: False, "a request")


def test_a_stream_whose_end_comes_in_two_pieces_has_ended_and_one_that_is_cut_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_WITHIN)
        crowd = Crowd(server.getsockname()[1], 1)
        try:
            with server.accept()[0] as first:
                first.sendall(b"data: 1 [DO")
                eventually(lambda: any(crowd._tails.values()), "the first piece")
                first.sendall(b"NE]")
                eventually(lambda: crowd.began == 2, "the next request")
            assert crowd.broken == 0
            with server.accept()[0] as second:
                second.sendall(b"data: 1")
            eventually(lambda: crowd.began == 3, "the next request")
            assert crowd.broken == 1
        finally:
            crowd.close()

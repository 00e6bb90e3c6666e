from __future__ import annotations

import json
import socket
import subprocess
import sys

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

import json
import subprocess
import sys


def test_hang_ups_in_streams_and_before_whole_answers_are_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.hang_ups", "--sides", "fake", "--clients", "2", "--count", "4"]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])["milliseconds"]["fake"]
    assert found.keys() == {"stream", "whole"}
    assert all(0 < kind["p50"] <= kind["p95"] <= kind["max"] for kind in found.values())

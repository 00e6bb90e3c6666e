"""The text of `millrace ps` for a status."""

import pytest

from millrace.model_manager.wire.messages import Status
from millrace.model_manager.wire.status import EngineStats, ModelInfo, ModelStatus
from millrace.pipelines.commands import processes
from millrace.pipelines.commands.processes import ps, status_lines, stop


@pytest.mark.parametrize(("pids", "shown"), [([], "pid -, "), ([7], "pid 7, "), ([7, 8, 9], "pids 7, 8, 9, ")])
def test_all_engines_of_a_model_are_shown(pids: list[int], shown: str) -> None:
    model = ModelStatus("key", "org/m", "ready", pids, 1, 0, 0, None, EngineStats())
    lines = [*status_lines(Status(1, 60.0, [model], [], []))]
    assert lines[1].startswith(f"model    org/m: ready, {shown}1 client, ")


def test_revisions_and_formats_of_a_model_are_told_apart() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    info = ModelInfo("org/m", "", "", "bfloat16", "cpu", 1, 1, 1, [], 0.0, 1, 1, "int8", "int8", commit)
    exact = ModelInfo("org/m", "", "", "float32", "cpu", 1, 1, 1, [], 0.0, 1, 1)
    models = [
        ModelStatus("a", "org/m", "ready", [1], 1, 0, 0, info, EngineStats(), commit),
        ModelStatus("b", "org/m", "ready", [2], 1, 0, 0, exact, EngineStats(), "folder-0123456789abcdef"),
    ]
    lines = [*status_lines(Status(1, 60.0, models, [], []))]
    assert lines[1].startswith("model    org/m@0123456789abcdef0123456 (bfloat16, int8, KV int8): ready, ")
    assert lines[2].startswith("model    org/m@folder-0123456789abcdef (float32): ready, ")


def test_an_engine_without_formats_and_blocks_shows_none() -> None:
    info = ModelInfo("gpt-4o", "", "openai", "", "remote", 0, 1, 1, [], 0.0)
    model = ModelStatus("a", "gpt-4o", "ready", [1], 1, 0, 0, info, EngineStats(batch=1.5))
    line = [*status_lines(Status(1, 60.0, [model], [], []))][1]
    assert line == "model    gpt-4o: ready, pid 1, 1 client, 2 running, 0 waiting, 0 tokens/s, 0 MB, 0 restarts (a)"


def test_a_model_that_waits_for_memory_says_for_what() -> None:
    waits = "0.9 GiB, 0.1 GiB are free; in memory: org/a"
    model = ModelStatus("b", "org/b", "waiting", [], 1, 0, 3, None, EngineStats(waiting=3), waits_for=waits)
    line = [*status_lines(Status(1, 60.0, [model], [], []))][1]
    assert line.startswith(f"model    org/b: waiting for {waits}, pid -, 1 client, 0 running, 3 waiting, ")


def test_a_narrow_terminal_gets_lines_that_fit_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ModelStatus("a-0123456789ab", "org/m", "ready", [1], 1, 0, 0, None, EngineStats())
    monkeypatch.setattr(processes, "read_status", lambda _place: Status(1, 60.0, [model], [], []))
    monkeypatch.setenv("COLUMNS", "40")
    assert ps([]) == 0
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ps([]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.split() == whole.split()
    assert narrow.splitlines()[2].startswith(" " * 9)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("name", ["org/m", f"org/m@{COMMIT}", f"org/m@{COMMIT[:23]}", "a"])
def test_a_model_is_stopped_by_each_of_its_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelStatus("a", "org/m", "ready", [1], 1, 0, 0, None, EngineStats(), COMMIT)
    other = ModelStatus("b", "org/other", "ready", [2], 1, 0, 0, None, EngineStats(), COMMIT)
    stopped: list[str | None] = []
    monkeypatch.setattr(processes, "read_status", lambda _place: Status(1, 60.0, [model, other], [], []))
    monkeypatch.setattr(processes, "stop_models", lambda _place, key: stopped.append(key))
    assert stop([name]) == 0
    assert stopped == ["a"]

"""A model is converted once on a machine, whoever asks at the same time, and one that is kept is whole."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from millrace.model_manager.backends.converted_models import converted_model
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelLoadFailed
from tests.waiting import eventually

CONVERT = """
import sys
from pathlib import Path
from millrace.model_manager.backends.converted_models import converted_model
from millrace.model_manager.wire.config import ModelConfig
from tests.waiting import eventually

notes, name, asks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def make(place):
    place.mkdir()
    (place / "model.bin").write_text("half")
    (notes / f"began-{name}").touch()
    eventually(lambda: len([*notes.glob("asks-*")]) >= asks)
    (place / "model.bin").write_text(f"whole, by {name}")

(notes / f"asks-{name}").touch()
print(converted_model(ModelConfig(model="some/model"), "format-1", make), flush=True)
"""
"""Converts a model, once so many processes ask for it, and prints where it is."""
KILLED = """
import sys
from pathlib import Path
from millrace.model_manager.backends.converted_models import converted_model, run_converter
from millrace.model_manager.wire.config import ModelConfig

converter = "import os, pathlib, sys, time\\n" \
    "pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} {sys.argv[2]}')\\n" \
    "time.sleep(600)"

def make(place):
    place.mkdir()
    run_converter(ModelConfig(model="some/model"), [sys.executable, "-c", converter, sys.argv[1], str(place)], "it")

converted_model(ModelConfig(model="some/model"), "format-1", make)
"""
"""Converts a model with a converter that tells its process and its folder in a file, and does not end."""
Convert = Callable[[str, int], subprocess.Popen[str]]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Convert:
    """Starts a process that wants the conversion; the cache folder is the test's own."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))

    def start(name: str, asks: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CONVERT, str(tmp_path), name, str(asks)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return start


def place_told(process: subprocess.Popen[str]) -> Path:
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return Path(told.strip())


def began(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("began-") for path in folder.glob("began-*"))


def test_processes_that_ask_at_once_make_one_conversion_and_a_later_one_takes_it(
    convert: Convert, tmp_path: Path
) -> None:
    processes = [convert(name, 4) for name in "abcd"]
    (place,) = {place_told(each) for each in processes}
    (maker,) = began(tmp_path)
    kept = place / "model.bin"
    assert kept.read_text() == f"whole, by {maker}"
    before = (kept.stat().st_ino, kept.stat().st_mtime_ns)
    assert place_told(convert("e", 1)) == place
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == before
    assert began(tmp_path) == [maker]


def test_a_conversion_that_was_killed_is_made_again_from_the_beginning(convert: Convert, tmp_path: Path) -> None:
    first = convert("a", 2)
    eventually(lambda: began(tmp_path) == ["a"], "a conversion in its middle")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    place = place_told(convert("b", 2))
    assert [path.name for path in place.iterdir()] == ["model.bin"]
    assert (place / "model.bin").read_text() == "whole, by b"
    assert not [*place.parent.glob("*.unfinished")]


def test_a_converter_ends_with_its_engine_and_the_next_one_writes_elsewhere(convert: Convert, tmp_path: Path) -> None:
    told = tmp_path / "told"
    engine = subprocess.Popen([sys.executable, "-c", KILLED, str(told)])
    eventually(lambda: told.exists() and " " in told.read_text(), "a converter that runs")
    pid, folder = told.read_text().split(" ", 1)
    engine.kill()
    engine.wait()
    try:
        eventually(lambda: not psutil.pid_exists(int(pid)), "the end of the converter")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(pid)).kill()
    assert Path(folder).is_dir()
    second = convert("b", 2)
    eventually(lambda: began(tmp_path) == ["b"], "a conversion in its middle")
    (unfinished,) = (tmp_path / "cache" / "conversions").glob("*.unfinished")
    assert unfinished != Path(folder)
    (tmp_path / "asks-c").touch()
    place = place_told(second)
    assert not [*place.parent.glob("*.unfinished")]


def test_a_conversion_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path))

    def make(place: Path) -> None:
        place.mkdir()
        raise ModelLoadFailed("no room")

    with pytest.raises(ModelLoadFailed, match="no room"):
        converted_model(ModelConfig(model="some/model"), "format-1", make)
    assert [path.suffix for path in (tmp_path / "conversions").iterdir()] == [".lock"]

"""Every benchmark says what it is and what it takes, and does nothing else when asked."""

import importlib
import sys
from pathlib import Path

import pytest

import benchmarks

MODULES = sorted(
    path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_help_is_printed_and_nothing_is_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks.{name}" in shown
    assert str(module.__doc__).strip() in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", MODULES)
def test_an_unknown_flag_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--no_such_flag"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err

"""Settings of the server: what is impossible is named, with its flag on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.cli import dispatch
from millrace.serving.settings import ServeConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"port": 70000},
        {"max_inflight": 0},
        {"max_body_mib": 0.0},
        {"request_timeout": float("inf")},
        {"stall_timeout": -1.0},
        {"ssl_certfile": "cert.pem"},
        {"host": 5},
    ],
)
def test_an_impossible_setting_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ServeConfig(**settings)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port", "70000"], "--port 70000: takes 0 (a free one) to 65535"),
        (["--frobnicate"], "unknown flag --frobnicate: --help lists all"),
        (["--host", "no.such.host.invalid", "--port", "0"], "--host no.such.host.invalid: is no address"),
        (["--api_key_file", "absent"], "--api_key_file absent: No such file"),
        (["--ssl_certfile", "absent", "--ssl_keyfile", "absent"], "--ssl_certfile absent: No such file"),
    ],
)
def test_a_wrong_flag_is_told_in_one_sentence(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dispatch(["serve", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"millrace: {told}")


@pytest.mark.parametrize(
    ("command", "missing"), [("serve", "uvicorn"), ("serve", "starlette"), ("metrics", "prometheus_client")]
)
def test_a_missing_extra_is_told_with_the_command_that_installs_it(command: str, missing: str, tmp_path: Path) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\nfrom millrace.pipelines.cli import dispatch\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(dispatch(['{command}', '--port', '0']))"],
        env=os.environ | {"MILLRACE_RUNTIME_DIR": str(tmp_path / "rt")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert f"{command} runs on {missing}, which" in ended.stderr
    assert "pip install 'beam-millrace[serve]'" in ended.stderr


def test_the_server_imports_neither_beam_nor_torch() -> None:
    program = (
        "import sys, contextlib\n"
        "import millrace.pipelines.commands.serve, millrace.serving.server, millrace.model_manager.client\n"
        "print([name for name in ('apache_beam', 'torch', 'transformers', 'numba') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"

"""`millrace manager`: keys, and what it says of flags that it cannot start with."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.model_manager.wire.manager_key import make_key
from millrace.pipelines.cli import dispatch


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--manager_key_file=k"], "--listen is missing: takes tcp://HOST:PORT"),
        (["--listen=tcp://here", "--manager_key_file=k"], "--listen tcp://here: takes tcp://HOST:PORT\n"),
        (["--listen=tcp://a..b:1", "--manager_key_file=k"], "--listen tcp://a..b:1: takes tcp://HOST:PORT\n"),
        (["--listen=unix:/x", "--manager_key_file=k"], "--listen unix:/x: takes tcp://HOST:PORT; in a folder, jobs"),
        (["--listen=tcp://127.0.0.1:0"], "--manager_key_file is missing: takes the file of a key, as does MILLRACE_"),
        (
            ["--listen=tcp://127.0.0.1:0", "--manager_key_file=/no/key"],
            "--manager_key_file /no/key: cannot be read: No",
        ),
        (["--listen=tcp://127.0.0.1:0", "--manager=tcp://h:1"], "unknown flag --manager"),
        (["--listen=tcp://127.0.0.1:0", "--weight=2"], "unknown flag --weight"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_MANAGER_KEY_FILE", raising=False)
    assert dispatch(["manager", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"millrace: {said}")


@pytest.mark.parametrize("flags", [[], ["--allow_commands"]])
def test_commands_are_allowed_by_their_flag_alone(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(_program: str, command: list[str], _environment: object) -> None:
        raise SystemExit("--allow_commands" in command)

    monkeypatch.setattr("os.execve", become)
    make_key(tmp_path / "manager.pem")
    manager = ["--listen=tcp://127.0.0.1:0", f"--manager_key_file={tmp_path}/manager.pem"]
    with pytest.raises(SystemExit) as ended:
        dispatch(["manager", *manager, *flags])
    assert ended.value.code is bool(flags)


def test_a_key_is_written_once_and_for_this_user_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "manager.pem"
    assert dispatch(["manager", f"--make_key={key}"]) == 0
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    assert dispatch(["manager", f"--make_key={key}"]) == 2
    assert key.read_bytes() == before
    assert (
        capsys.readouterr().err
        == f"millrace: --make_key {key}: cannot be written: File exists; takes the path of a new file\n"
    )

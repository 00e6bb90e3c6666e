"""Python environments of other engines, made for an engine of a few lines that lies on this disk."""

import re
import ssl
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model_manager.store import environments
from millrace.model_manager.store.environments import (
    EngineState,
    built_for,
    check_engine,
    engine_python,
    environment_python,
    install,
    installed_version,
    state,
)
from millrace.model_manager.wire.backends import AS_OF, BACKENDS, Backend
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from millrace.pipelines.cli import dispatch
from tests.model_manager.store.package_index import package_index, write_wheel

STARTS = EngineState("starts here")


def write_engine(wheel: Path, content: str, requires: str = "") -> None:
    """The wheel of an engine with such a module."""
    write_wheel(wheel.parent, "small_engine", "1", content, requires)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return tmp_path / "small_engine-1-py3-none-any.whl"


@pytest.fixture
def backend(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """An engine in a package of its own, and an empty cache folder."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    write_engine(wheel, "VERSION = 1")
    made = Backend(
        name="small",
        summary="-",
        loader="-",
        modules=("small_engine",),
        packages=(str(wheel),),
        parameters=frozenset(),
    )
    monkeypatch.setitem(BACKENDS, "small", made)
    return made


def test_an_installed_engine_starts_here(backend: Backend) -> None:
    assert state(backend) == EngineState("not installed", "millrace engines install small")
    with pytest.raises(ModelLoadFailed, match="millrace engines install small"):
        engine_python(ModelConfig(model=EMBEDDED_MODEL, backend="small"))
    assert install(backend) == environment_python("small")
    assert state(backend) == STARTS
    assert engine_python(ModelConfig(model=EMBEDDED_MODEL, backend="small")) == environment_python("small")


def test_programs_of_an_environment_run_where_it_lies(backend: Backend, wheel: Path) -> None:
    write_engine(wheel, "def main(): print('it runs')")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("small_engine-1.dist-info/entry_points.txt", "[console_scripts]\nsmall = small_engine:main\n")
    program = install(backend).with_name("small")
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout == "it runs\n"


def test_an_environment_of_other_versions_is_told(backend: Backend) -> None:
    install(backend)
    newer = replace(backend, packages=(*backend.packages, "another==1"))
    assert state(newer) == EngineState("has other versions", "millrace engines install small")


@pytest.mark.parametrize(
    ("uploaded", "of_the_process", "version"),
    [
        ({"1.0": "2026-01-01T00:00:00Z", "2.0": "2099-01-01T00:00:00Z"}, None, "1.0"),
        ({"1.0": "2026-01-01T00:00:00Z", "2.0": "2099-01-01T00:00:00Z"}, "2100-01-01", "2.0"),
        ({"1.0": "", "2.0": ""}, "false", "2.0"),
    ],
    ids=["our day", "the user's day", "an index without dates"],
)
def test_what_the_packages_depend_on_is_as_it_was_on_one_day(
    *,
    backend: Backend,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uploaded: dict[str, str],
    of_the_process: str | None,
    version: str,
) -> None:
    write_engine(wheel, "", requires="dependency")
    monkeypatch.setattr(environments, "PROCESS_PACKAGES", ())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_EXCLUDE_NEWER", raising=False)
    if of_the_process:
        monkeypatch.setenv("UV_EXCLUDE_NEWER", of_the_process)
    with package_index(tmp_path / "index", "dependency", uploaded) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        python = install(backend)
    assert [each.name for each in python.parents[1].glob("lib/python3*/site-packages/dependency-*")] == [
        f"dependency-{version}.dist-info"
    ]


@pytest.mark.parametrize(
    ("variables", "has_store", "trusted"),
    [
        ({}, True, "1"),
        ({}, False, ""),
        ({"UV_SYSTEM_CERTS": "0"}, True, "0"),
        ({"SSL_CERT_FILE": "authority.pem"}, True, ""),
    ],
    ids=["the system's", "a system without any", "the user's choice", "the user's file"],
)
def test_uv_trusts_the_systems_authorities_unless_it_is_told_whom_to_trust(
    *,
    backend: Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    has_store: bool,
    trusted: str,
) -> None:
    for name in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (store := tmp_path / "store").mkdir()
    if has_store:
        (store / "authority.pem").touch()
    paths = ssl.DefaultVerifyPaths("", str(store), "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\nprintf %s "$UV_SYSTEM_CERTS" > {tmp_path / "trusted"}\n')
    uv.chmod(0o700)
    monkeypatch.setattr(environments, "_uv", lambda: str(uv))
    install(backend)
    assert (tmp_path / "trusted").read_text() == trusted


def test_an_environment_of_another_day_is_told(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    install(backend)
    monkeypatch.setattr(environments, "AS_OF", "2099-01-01T00:00:00Z")
    assert state(backend) == EngineState("has other versions", "millrace engines install small")


def test_pip_which_knows_no_day_is_told_once(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(environments, "_uv", lambda: None)
    monkeypatch.setattr(environments, "_run", lambda _command, _backend: None)
    install(backend)
    (message,) = caplog.messages
    assert message.startswith("pip makes the environment of small, with the newest versions of what")
    assert AS_OF in message


def test_an_engine_that_does_not_import_says_why(backend: Backend, wheel: Path) -> None:
    write_engine(wheel, "raise ImportError('libsmall.so is missing')")
    install(backend)
    assert state(backend) == EngineState("does not start", "ImportError: libsmall.so is missing")


def test_a_python_without_the_engine_says_what_it_lacks(backend: Backend) -> None:
    config = ModelConfig(model=EMBEDDED_MODEL, backend="small", backend_python=sys.executable)
    with pytest.raises(
        ConfigError, match=rf"^backend_python='{sys.executable}': lacks small_engine; install that there"
    ):
        check_engine(config)
    install(backend)
    check_engine(ModelConfig(backend="small", backend_python=str(environment_python("small"))))


@pytest.mark.parametrize(
    ("program", "came"),
    [
        ("/bin/true", "status 0 and said: nothing"),
        ("/bin/echo", "status 0 and said: -P -c"),
        ("/bin/false", "status 1"),
    ],
)
def test_a_program_that_is_no_python_is_told_with_what_came_of_it(backend: Backend, program: str, came: str) -> None:
    config = ModelConfig(model=EMBEDDED_MODEL, backend="small", backend_python=program)
    with pytest.raises(ConfigError) as refused:
        check_engine(config)
    said = str(refused.value)
    assert said.startswith(f"backend_python='{program}': takes a Python of 3.11 or newer; `{program} -P -c …` ended")
    assert came in said
    assert backend.name in said


def test_a_python_whose_engine_does_not_import_says_why(backend: Backend, wheel: Path) -> None:
    write_engine(wheel, "print('hello')\nraise OSError('libsmall.so: no such file')")
    install(backend)
    config = ModelConfig(backend="small", backend_python=str(environment_python("small")))
    with pytest.raises(ConfigError, match=r"lacks small_engine, which does not start there: OSError: libsmall\.so: no"):
        check_engine(config)


def test_an_install_that_fails_keeps_the_environment_that_is_there(backend: Backend, tmp_path: Path) -> None:
    install(backend)
    with pytest.raises(ModelLoadFailed, match=r"the back end small is not made: .* ended with status"):
        install(replace(backend, packages=(str(tmp_path / "nowhere"),)))
    assert state(backend) == STARTS
    assert [each.name for each in environment_python("small").parents[2].iterdir() if "source" not in each.name] == [
        "small"
    ]


def test_the_command_lists_each_engine(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["engines"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["engine", "version", "tasks", "state"]
    assert [line.split()[0] for line in lines[: len(BACKENDS)]] == list(BACKENDS)
    tasks = {line.split()[0]: re.split("  +", line)[2] for line in lines[: len(BACKENDS)]}
    assert (tasks["torch"], tasks["ctranslate2"], tasks["endpoint"]) == ("all", "generate", "generate, embed")
    assert tasks["llama_cpp"] == "generate, extract"
    assert next(line for line in lines if line.startswith("torch ")).endswith("starts here")
    assert f"{backend.name} not installed: millrace engines install small" in lines
    assert max(map(len, lines)) <= 80


def test_the_version_of_an_engine_is_the_installed_one(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = replace(backend, packages=("small-engine[all]==2.0",), cuda_packages=("small-cuda==2.0",))
    monkeypatch.setitem(BACKENDS, "small", pinned)
    assert installed_version(pinned) == ""
    site = environment_python("small").parents[1] / "lib" / "python3.11" / "site-packages"
    (site / "small_engine-1.5.dist-info").mkdir(parents=True)
    assert installed_version(pinned) == "1.5"
    assert dispatch(["engines"]) == 0
    assert next(line for line in capsys.readouterr().out.splitlines() if line.startswith("small ")).split()[1] == "1.5"


def test_an_environment_for_gpus_has_other_packages(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    both = replace(backend, cuda_packages=(f"file://{backend.packages[0]}",))  # the same, as another pin
    monkeypatch.setitem(BACKENDS, "small", both)
    install(both)
    assert (built_for(both), state(both).word) == ("cpu", "starts here, for CPUs")
    install(both, "cuda")
    assert (built_for(both), state(both).word) == ("cuda", "starts here, for GPUs")


def test_an_environment_is_for_gpus_where_their_driver_is(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("millrace.model_manager.store.environments._DRIVER", tmp_path)
    install(backend)
    assert built_for(backend) == "cpu", "there is no build for GPUs"
    both = replace(backend, cuda_packages=(f"file://{backend.packages[0]}",))
    install(both)
    assert built_for(both) == "cuda"


def test_a_build_that_there_is_not_is_refused(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["engines", "install", backend.name, "--device", "cuda"]) == 2
    assert "--device cuda: there is no build of small for NVIDIA GPUs to install, vllm has one;" in (
        capsys.readouterr().err
    )


def test_an_engine_without_packages_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="needs no environment"):
        install(BACKENDS["fake"])

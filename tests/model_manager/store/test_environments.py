"""Python environments of other engines, made for an engine of a few lines that lies on this disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.model_manager.store.environments import engine_python, environment_python, install, state
from millrace.model_manager.wire.backends import BACKENDS, Backend
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from millrace.pipelines.cli import dispatch


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """An engine in a package of its own, and an empty cache folder."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "package"
    package.mkdir()
    (package / "small_engine.py").write_text("VERSION = 1")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "small-engine"\nversion = "1"\n[tool.setuptools]\npy-modules = ["small_engine"]\n'
    )
    made = Backend(name="small", summary="-", loader="-", modules=("small_engine",), packages=(str(package),))
    monkeypatch.setitem(BACKENDS, "small", made)
    return made


def test_an_installed_engine_starts_here(backend: Backend) -> None:
    assert state(backend) == "not installed: millrace engines install small"
    with pytest.raises(ModelLoadFailed, match="millrace engines install small"):
        engine_python(ModelConfig(model=EMBEDDED_MODEL, backend="small"))
    assert install(backend) == environment_python("small")
    assert state(backend) == "installed, starts here"
    assert engine_python(ModelConfig(model=EMBEDDED_MODEL, backend="small")) == environment_python("small")


def test_an_environment_of_other_versions_is_told(backend: Backend) -> None:
    install(backend)
    newer = replace(backend, packages=(*backend.packages, "another==1"))
    assert state(newer) == "installed with other versions: millrace engines install small"


def test_an_engine_that_does_not_import_says_why(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "package" / "small_engine.py").write_text("raise ImportError('libsmall.so is missing')")
    install(backend)
    assert state(backend) == "installed, but does not start: ImportError: libsmall.so is missing"


def test_an_install_that_fails_keeps_the_environment_that_is_there(backend: Backend, tmp_path: Path) -> None:
    install(backend)
    with pytest.raises(ModelLoadFailed, match=r"the back end small is not made: .* ended with status"):
        install(replace(backend, packages=(str(tmp_path / "nowhere"),)))
    assert state(backend) == "installed, starts here"
    assert [each.name for each in environment_python("small").parents[2].iterdir() if "source" not in each.name] == [
        "small"
    ]


def test_the_command_lists_each_engine(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["engines"]) == 0
    listed = capsys.readouterr().out
    assert f"{backend.name:<12} -; for generate" in listed
    assert "millrace's own engine; for embed, generate, score\n             starts here" in listed


def test_an_engine_without_packages_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="needs no environment"):
        install(BACKENDS["fake"])

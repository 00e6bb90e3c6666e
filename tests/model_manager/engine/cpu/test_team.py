"""Kernels are compiled once for all starts and run in every thread of the team."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: F401 - brings the OpenMP runtime

from millrace.model_manager.engine.cpu.team import Kernel, Team
from millrace.model_manager.engine.cpu.vector_ops import fetch_add


def _count(address: int) -> None:
    fetch_add(address)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("cache")
def test_a_kernel_runs_once_in_every_thread(size: int) -> None:
    counter = np.zeros(1, np.int64)
    Team(size).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == size


def test_compiled_code_is_kept_under_a_digest_of_its_sources(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    for text in ("first", "second", "first"):
        source.write_text(text)
        Kernel(_count, [source])
    assert len(list((cache / "millrace" / "kernels").iterdir())) == 2
    assert len(list(cache.rglob("*.nbc"))) == 2


def test_without_a_folder_to_keep_it_in_a_kernel_still_runs_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    counter = np.zeros(1, np.int64)
    Team(1).run(Kernel(_count, [Path(__file__)]), counter.ctypes.data)
    assert counter[0] == 1
    assert "compiled kernels are not kept" in caplog.text


def test_without_an_openmp_runtime_the_team_is_one_thread_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace.model_manager.engine.cpu.team._loaded_library", lambda _name: None)
    assert Team(2).size == 1
    assert "attention runs on one thread" in caplog.text

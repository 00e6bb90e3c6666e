"""Checks that were passed are kept for one test alone."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def kept_in(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(folder))
    return folder

"""Fixtures of the store's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_manager.store.cloud_storage import CloudStorage, serve


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    """Cloud Storage as this process and its children find it, with a cache of the test's own."""
    with serve(tmp_path / "objects") as cloud:
        cloud.environment["MILLRACE_CACHE_DIR"] = str(tmp_path / "cache")
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        yield cloud

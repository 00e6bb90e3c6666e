"""Chromium, as tests of the page drive it: the one on PATH, else apt-get's, where this process may install it.

Without one, tests are skipped on a developer's machine. They fail where the environment has CI or ENGINES: there all
tests are meant to run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.servers.installed import alone, run

WITHIN = 300.0
"""Seconds that a browser has to start, and for each thing that it does, on a machine that may be very busy."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600")


class NoChromium(Exception):
    """There is none, and none can be installed here."""


def program() -> Path:
    """Its path; raises NoChromium."""
    with alone("chromium"):
        if _found() is None and os.geteuid() == 0 and shutil.which("apt-get"):
            run(*_APT, "update")
            run(*_APT, "install", "--no-install-recommends", "chromium", DEBIAN_FRONTEND="noninteractive")
    if (found := _found()) is None:
        raise NoChromium(f"none of {', '.join(_NAMES)} is on PATH, and only root may install one by apt-get")
    return found


def _found() -> Path | None:
    return next((Path(path) for name in _NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """One without a window, for several pages; see above for a machine that has none, and may install none."""
    try:
        path = program()
    except NoChromium as error:
        if "CI" in os.environ or "ENGINES" in os.environ:
            pytest.fail(f"{error}; with CI or ENGINES in the environment this is no reason to skip")
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, timeout=1000 * WITHIN)
        try:
            yield started
        finally:
            started.close()

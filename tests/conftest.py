"""Settings for all tests.

Ctrl-C works in a background job too. Property tests have no deadline and repeat the same examples unless
HYPOTHESIS_SEARCH is set. Each test process (`-n`) has its own model manager and its share of the cores.
"""

import gc
import os
import re
import signal
import zlib
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.client import observing, status
from millrace.model_manager.wire.config import runtime_dir
from millrace.model_manager.wire.imports import importing

# A shell starts its background jobs (`make test &`) with interrupts ignored, nohup what it starts with hangups ignored,
# and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile(
    "a busy machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="HYPOTHESIS_SEARCH" not in os.environ,
    max_examples=100 if "HYPOTHESIS_SEARCH" in os.environ else 50,
)
settings.load_profile("a busy machine")

# A process may stand still for longer than a user would wait for it: five seconds for an answer over HTTP or of a
# manager, fifteen for the end of a manager.
for wait in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, wait, 120.0)
observing.ANSWER_WITHIN = 120.0
status._END_WITHIN = 300.0

# To verify the bytecode of released jars is a fifth of what a JVM computes until its first job is done.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    run = os.environ["PYTEST_XDIST_TESTRUNUID"][:8]  # another run may be under way
    os.environ["MILLRACE_RUNTIME_DIR"] = f"{runtime_dir()}-{run}-{worker}"
    share = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "Groups":
    """The own `--dist loadgroup` of xdist 3.8 groups nothing with pytest 9.2: it cannot change a node's id."""
    return Groups(config, log)


class Groups(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
    """Tests of a group run in one process, one after the other: what they share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(test: str) -> str:
    """The servers of a test's runner, the engine or server of a job over one, the kernels of a step, or the file."""
    if test.startswith(("tests/runners/test_kills", "tests/runners/test_kafka_on_flink")):
        return "flink"
    if test.startswith("tests/model_manager/engine/cpu/"):
        return "kernels"  # which two processes would compile at once
    runner = re.match(r"tests/runners/.*\[(flink-embedded|flink|prism|direct)", test)
    engine = re.match(r"tests/model_manager/backends/test_jobs\.py.*\[([\w-]+)\]", test)
    server = re.match(r"tests/model_manager/backends/test_(triton|ray)", test)
    found = runner or engine or server
    return found[1] if found else test.partition("::")[0]


_MARKED = re.compile(r"mark\.(slow|runners|engines)\b|\bCLOUD_STORAGE\b")
"""What a module with long tests has in its text."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where long tests alone are asked for (`-m runners`), modules without any are not imported: that takes longer."""
    marks = config.option.markexpr
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_module and marks and "not " not in marks and not _is_marked(collection_path) else None


@cache
def _is_marked(module: Path) -> bool:
    return bool(_MARKED.search(module.read_text()))


_EARLY = (
    *("tests/cloud_storage", "tests/notebooks", "tests/serving", "tests/transforms"),
    *("tests/pipelines/streams", "tests/pipelines/job"),
)
"""Folders in which a file lasts minutes, or one late in the alphabet a minute or more."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """A quarter of the time of importing all tests would be the garbage collector's, and a twentieth of their runs."""
    gc.set_threshold(20_000, 20, 20)
    with importing():
        return (yield)


def pytest_unconfigure() -> None:
    """Libraries that count what is left at the end find nothing."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups that last long begin first: else one of them ends alone, on one core.

    Fails for a long test that `pytest_ignore_collect` would not find.
    """
    for item in items:
        is_long = any(item.get_closest_marker(mark) for mark in ("slow", "runners", "engines"))
        if is_long and not _is_marked(item.path):
            raise pytest.UsageError(f"{item.nodeid}: its mark is not in its module's text: see {__file__}")
    is_mixed = config.option.markexpr.startswith("not ")
    items.sort(key=lambda item: _place(item.nodeid, is_mixed=is_mixed))


def _place(test: str, *, is_mixed: bool) -> tuple[bool, bool, int]:
    """Where a test comes. Files of a folder mostly wait alike or compute alike, so folders of fast tests are mixed."""
    its_group, is_early = group(test), test.startswith(_EARLY)
    return its_group != "flink", not is_early, zlib.crc32(its_group.encode()) if is_mixed and not is_early else 0

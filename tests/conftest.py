"""What holds for all tests: an interrupt arrives, whoever started them; no example of a property is judged by the time
that it takes, and examples are the same each time, unless HYPOTHESIS_SEARCH is set; processes that run tests side by
side (`-n`) have a model manager each, and share the cores; a file's tests, or those of a runner, stay in one of them.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from millrace.model_manager.wire.config import runtime_dir

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs (`make test &`) with interrupts ignored, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "a busy machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="HYPOTHESIS_SEARCH" not in os.environ,
)
settings.load_profile("a busy machine")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["MILLRACE_RUNTIME_DIR"] = f"{runtime_dir()}-{worker}"
    share = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup`: tests that share a server stay in one process, and the longest begin first."""
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: groups[item] != "flink")


def _group(item: pytest.Item) -> str:
    """The group that a test names, the servers of its runner, or its file."""
    if marker := item.get_closest_marker("xdist_group"):
        return str(marker.args[0])
    parameters = getattr(item, "callspec", None)
    target = getattr(parameters.params.get("target") if parameters else None, "name", None)
    if target is None:
        return item.location[0]
    return "flink-embedded" if "embedded" in target else target.partition("-")[0]

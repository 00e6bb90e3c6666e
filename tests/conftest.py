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
    """For `--dist loadgroup`: what tests share, a server of a runner too, is made once."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    """The servers that a test's runner needs (`flink-batch` of `flink-batch-process`), or the test's file."""
    parameters = getattr(item, "callspec", None)
    target = getattr(parameters.params.get("target") if parameters else None, "name", None)
    return target.rpartition("-")[0] if target else item.location[0]

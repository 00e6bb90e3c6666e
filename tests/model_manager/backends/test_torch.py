"""Our own engine through the scenarios of the others, which are compared with it; `model.generate` is its measure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model_manager.backends.scenarios import Case, Running, Scenarios
from tests.model_manager.backends.scenarios import running as both_engines

pytestmark = pytest.mark.engines

CASE = Case(
    "torch",
    settings={"dtype": "float32", "max_num_seqs": 16},
    constraints=("regex", "json_schema", "json", "choice", "grammar"),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestTorch(Scenarios):
    """All scenarios."""

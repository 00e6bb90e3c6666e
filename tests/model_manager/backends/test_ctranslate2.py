"""CTranslate2 in the inference process; the embedded model is converted at its first load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.model_manager.backends.scenarios import Case, Running, Scenarios
from tests.model_manager.backends.scenarios import running as both_engines

pytestmark = pytest.mark.engines

CASE = Case(
    "ctranslate2",
    settings={"dtype": "float32", "max_num_seqs": 16},
    constraints=(),
    logprobs=False,
    seeds=False,
    unsupported={"min_p": 0.5, "logit_bias": {3: 1.0}, "priority": 1},
    unknown_option="inter_thread",
    differ=1,
)


@pytest.fixture(scope="module")
def running(engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine_python(CASE.backend)
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestCTranslate2(Scenarios):
    """All scenarios."""

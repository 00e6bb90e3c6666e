"""vLLM in the inference process, as its users have it: `millrace engines install vllm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.model_manager.backends.scenarios import CAPITALS, PATIENCE, Case, Running, Scenarios
from tests.model_manager.backends.scenarios import running as both_engines

pytestmark = pytest.mark.engines

CASE = Case(
    "vllm",
    settings={"dtype": "float32", "max_num_seqs": 16, "backend_options": {"enforce_eager": True}},
    constraints=("regex", "json_schema", "json", "choice", "grammar"),
    unsupported={"typical_p": 0.5},
    differ=1,
)


@pytest.fixture(scope="module")
def running(engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine_python(CASE.backend)
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestVllm(Scenarios):
    """All scenarios."""

    def test_scores_are_those_of_our_engine(self, running: Running) -> None:
        one, other = (
            client.score(CAPITALS[0], [" Paris", " Rome is"], request_id=f"score-{n}").result(PATIENCE)
            for n, client in enumerate((running.client, running.ours))
        )
        for mine, theirs in zip(one, other, strict=True):
            assert mine.prompt_logprobs is not None
            assert theirs.prompt_logprobs is not None
            assert mine.prompt_logprobs.logprobs == pytest.approx(theirs.prompt_logprobs.logprobs, abs=0.01)

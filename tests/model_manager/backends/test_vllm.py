"""vLLM in the inference process, as its users have it: `millrace engines install vllm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import ManagerConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
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

    def test_embeddings_are_those_of_our_engine(self, running: Running, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="this vLLM was loaded to generate: set runner=pooling among"):
            running.client.embed("x", request_id="generating").result(PATIENCE)
        prompts = [*CAPITALS, "a", "word " * 300]  # the last one takes two steps
        config = CASE.config.for_task("embed")
        with EngineClient.open(config, manager=ManagerConfig(linger=0.0), runtime=tmp_path / "run") as client:
            for pooling, normalize in (("last", True), ("mean", True), ("mean", False)):
                one, other = (embedded(each, prompts, pooling, normalize) for each in (client, running.ours))
                assert np.abs(one - other).max() < 1e-4 * np.abs(other).max()
            with pytest.raises(InvalidRequest, match="generate: this vLLM was loaded to embed"):
                client.submit("x", SamplingParams(), request_id="embedding").result(PATIENCE)


def embedded(client: EngineClient, prompts: list[str], pooling: Any, normalize: bool) -> Any:
    """[prompt, hidden size]"""
    asked = [
        client.embed(each, request_id=f"{pooling}-{normalize}-{n}", pooling=pooling, normalize=normalize)
        for n, each in enumerate(prompts)
    ]
    return np.stack([future.result(PATIENCE).vector for future in asked])

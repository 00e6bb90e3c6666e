"""Log-probabilities over llama.cpp's own HTTP server, in each dialect that takes them: those of transformers' model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client import EngineClient
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import InvalidRequest
from millrace.model_manager.wire.logprobs import Logprobs
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.backends.generated import Generated, generated
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.backends.real_servers import PATIENCE, PROGRAMS, Family, family, python_of, remote
from tests.model_manager.backends.scenarios import CAPITALS
from tests.model_manager.store.checkpoints import EMBEDDED
from tests.servers.processes import free_port

__all__ = ["family"]

pytestmark = pytest.mark.engines

DIALECTS = ("openai", "openai-completions", "llama-completion")
MOST_TOKENS = 5
END = json.loads((EMBEDDED / "config.json").read_bytes())["eos_token_id"]
SAMPLED: dict[str, Any] = {"logprobs": 1, "max_tokens": 12, "temperature": 3.0, "seed": 5, "logit_bias": {END: -100}}


def alternatives_of(number: int) -> int:
    """How many a row asks for."""
    return 2 * (number % 2)


def answers(client: EngineClient, *, chats: bool) -> list[Output]:
    """Greedy ones."""
    futures = []
    for number, prompt in enumerate(CAPITALS):
        said: Any = [{"role": "user", "content": prompt}] if chats else prompt
        params = SamplingParams(logprobs=alternatives_of(number), max_tokens=MOST_TOKENS)
        futures.append(client.submit(said, params, request_id=f"{number}"))
    return [future.result(PATIENCE) for future in futures]


def given(output: Output) -> Logprobs:
    assert output.logprobs is not None
    return output.logprobs


def expect_alike(found: Logprobs, expected: Generated, count: int) -> None:
    """The same tokens with the same numbers, and so many alternatives to each."""
    wanted = expected.logits.log_softmax(-1)
    own = wanted.gather(1, wanted.argmax(-1, keepdim=True)).flatten()
    best = wanted.topk(count)
    assert [each.token_id for each in found.tokens] == expected.token_ids
    assert found.logprobs == pytest.approx(own.tolist(), abs=0.01)
    assert set(found.greedy) == {True}
    assert [[each.token_id for each in token.top_logprobs] for token in found.tokens] == best.indices.tolist()
    for token, numbers in zip(found.tokens, best.values.tolist(), strict=True):
        assert [each.logprob for each in token.top_logprobs] == pytest.approx(numbers, abs=0.01)


def test_log_probabilities_are_those_of_the_model_in_each_dialect_that_takes_them(
    family: Family, tmp_path: Path
) -> None:
    port = str(free_port())
    model, url = write_gguf(tmp_path / "tiny-f32.gguf"), f"http://127.0.0.1:{port}"
    command = [*python_of("llama_cpp"), str(PROGRAMS / "llama.py"), str(model), port]
    with remote(command, f"{url}/health", tmp_path / "log"):
        for dialect in DIALECTS:
            chats = dialect == "openai"
            options: dict[str, Any] = {"urls": url, "dialect": dialect, "extra_parameters": "logprobs"}
            config = ModelConfig(model="tiny", backend="endpoint", backend_options=options | {"max_connections": 4})
            with EngineClient.open(config, manager=ManagerConfig(linger=0.1), runtime=tmp_path / "run") as client:
                found = answers(client, chats=chats)
                sampled = client.submit(CAPITALS[0], SamplingParams.parse(SAMPLED), request_id="s").result(PATIENCE)
                with pytest.raises(InvalidRequest, match=r"^prompt_logprobs=1: the back end endpoint does not take it"):
                    client.submit(CAPITALS[0], SamplingParams(prompt_logprobs=1), request_id="prompt")
            for number, pair in enumerate(zip(found, generated(CAPITALS, MOST_TOKENS, chats=chats), strict=True)):
                expect_alike(given(pair[0]), pair[1], alternatives_of(number))
                texts = "".join(each.token for each in given(pair[0]).tokens)
                assert texts == pair[0].text
            tokens = given(sampled).tokens
            likeliest = [each.token_id == each.top_logprobs[0].token_id for each in tokens]
            assert given(sampled).greedy == likeliest
            assert False in likeliest
            assert all(each.logprob <= each.top_logprobs[0].logprob for each in tokens)
        family.kill()

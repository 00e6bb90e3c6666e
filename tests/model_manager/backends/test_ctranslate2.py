"""CTranslate2 in the inference process; the embedded model is converted at its first load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.client.deltas import Delta
from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from millrace.model_manager.wire.request import Output
from tests.model_manager.backends.scenarios import (
    CAPITALS,
    PATIENCE,
    SUMS,
    Case,
    Running,
    Scenarios,
    a_folder_as_it_is_answers_alike,
    opened,
    own_format,
)
from tests.model_manager.backends.scenarios import running as both_engines

pytestmark = pytest.mark.engines

CASE = Case(
    "ctranslate2",
    settings={"dtype": "float32", "max_num_seqs": 16},
    constraints=(),
    logprobs=False,
    seeds=False,
    unknown_option="inter_thread",
    differ=1,
)


@pytest.fixture(scope="module")
def running(engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine_python(CASE.backend)
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestCTranslate2(Scenarios):
    """All scenarios."""

    def test_a_folder_in_its_own_format_is_loaded_as_it_is(self, running: Running, tmp_path: Path) -> None:
        folder = own_format(running, "ctranslate2-float32", tmp_path / "converted")
        a_folder_as_it_is_answers_alike(running, folder, tmp_path / "run")
        (folder / "generation_config.json").unlink()  # the converter's own config.json names the token that ends
        with opened(CASE, folder, tmp_path / "run", quantization="int8") as client:
            assert (client.info.quantization, client.info.dtype) == ("int8", "float32")
            assert client.info.eos_token_ids == running.ours.info.eos_token_ids
        (folder / "tokenizer_config.json").unlink()
        with pytest.raises(ConfigError, match=r"^max_model_len: .*no file says"), opened(CASE, folder, tmp_path / "r"):
            pass
        (folder / "model.bin").write_bytes(b"\6\0\0\0 no model")
        with (
            pytest.raises(ModelLoadFailed, match="converted: CTranslate2: "),
            opened(CASE, folder, tmp_path / "run", max_model_len=100),
        ):
            pass

    def test_weights_in_int8_are_converted_and_computed_in_int8(self, running: Running, tmp_path: Path) -> None:
        """They answer as the float32 conversion does once it is quantized at its load, and many rows as ours do."""
        with opened(CASE, resolve(EMBEDDED_MODEL), tmp_path / "run", quantization="int8") as client:
            assert (client.info.quantization, client.info.dtype) == ("int8", "float32")
            found = running.answers(CAPITALS + SUMS, client, max_tokens=24)
        weights = [
            own_format(running, f"ctranslate2-{kind}", tmp_path / kind) / "model.bin" for kind in ("int8", "float32")
        ]
        assert weights[0].stat().st_size < 0.3 * weights[1].stat().st_size
        with opened(CASE, weights[1].parent, tmp_path / "run", quantization="int8") as client:
            again = running.answers(CAPITALS + SUMS, client, max_tokens=24)
        assert [each.token_ids for each in found] == [each.token_ids for each in again]
        ours = running.answers(CAPITALS + SUMS, running.ours, max_tokens=24)
        alike = sum(one.token_ids == other.token_ids for one, other in zip(found, ours, strict=True))
        assert alike >= 8

    def test_two_batches_run_at_once_on_two_replicas(self, running: Running, tmp_path: Path) -> None:
        """Each of them begins before the other ends, and rows answer as in one batch."""
        options = {"inter_threads": 2}
        prompts = CAPITALS[:4]
        params: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}
        with opened(CASE, resolve(EMBEDDED_MODEL), tmp_path / "run", max_num_seqs=2, backend_options=options) as client:
            ended_first = [self._ended_as_all_had_begun(running, client, prompts, params) for _ in range(3)]
            assert 0 in ended_first, "one batch had to end before the other began"
            found = running.answers(prompts, client, **params)
        expected = running.answers(prompts, running.client, **params)
        different = [
            each.text for each, other in zip(found, expected, strict=True) if each.token_ids != other.token_ids
        ]
        assert len(different) <= CASE.differ, different

    def _ended_as_all_had_begun(
        self, running: Running, client: EngineClient, prompts: list[str], params: dict[str, Any]
    ) -> int:
        """How many of the rows had ended when the last of them began."""
        begun: list[str] = []
        ended: list[int] = []
        asked: list[Future[Output]] = []

        def note(prompt: str, _: Delta) -> None:
            if prompt not in begun:
                begun.append(prompt)
                if len(begun) == len(prompts):
                    ended.append(sum(future.done() for future in asked))

        for prompt in prompts:
            asked.append(running.submit(prompt, client, on_delta=partial(note, prompt), **params))
        for future in asked:
            future.result(PATIENCE)
        return ended[0]

"""CTranslate2 in the inference process; the embedded model is converted at its first load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from tests.model_manager.backends.scenarios import (
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

"""OpenVINO GenAI in the inference process; the embedded model is exported at its first load."""

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
    "openvino",
    settings={"dtype": "float32", "max_num_seqs": 16, "kv_cache_gib": 1.0},
    constraints=("regex", "json_schema", "json", "choice"),
    logprobs=False,
    unsupported={"typical_p": 0.5, "logit_bias": {3: 1.0}, "priority": 1},
    unknown_option="cash_size",
    differ=1,
)


@pytest.fixture(scope="module")
def running(engine_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine_python(CASE.backend)
    yield from both_engines(CASE, tmp_path_factory.mktemp("engines") / "run")


class TestOpenVino(Scenarios):
    """All scenarios."""

    def test_a_folder_in_its_own_format_is_loaded_as_it_is(self, running: Running, tmp_path: Path) -> None:
        folder = own_format(running, "openvino-fp32", tmp_path / "ir")
        a_folder_as_it_is_answers_alike(running, folder, tmp_path / "run")
        with (
            pytest.raises(ConfigError, match=r"^quantization='int8': .*ir is in OpenVINO's format"),
            opened(CASE, folder, tmp_path / "run", quantization="int8"),
        ):
            pass
        (folder / "openvino_model.xml").write_text("<net/>")
        with pytest.raises(ModelLoadFailed, match=r"ir: OpenVINO: "), opened(CASE, folder, tmp_path / "run"):
            pass

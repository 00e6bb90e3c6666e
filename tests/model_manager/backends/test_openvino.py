"""OpenVINO GenAI in the inference process; the embedded model is exported at its first load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.model_manager.wire.errors import ConfigError, ModelLoadFailed
from tests.model_manager.backends.scenarios import (
    CAPITALS,
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
    "openvino",
    settings={"dtype": "float32", "max_num_seqs": 16, "kv_cache_gib": 1.0},
    constraints=("regex", "json_schema", "json", "choice"),
    logprobs=False,
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

    @pytest.mark.parametrize(("bits", "part"), [("int8", 0.27), ("int4", 0.16)])
    def test_weights_in_few_bits_are_exported_and_computed_so(
        self, running: Running, tmp_path: Path, bits: str, part: float
    ) -> None:
        """They answer as that export does once it is loaded as it is, and most rows as ours do."""
        prompts = CAPITALS + SUMS
        with opened(CASE, resolve(EMBEDDED_MODEL), tmp_path / "run", quantization=bits) as client:
            assert (client.info.quantization, client.info.dtype) == (bits, "float32")
            found = running.answers(prompts, client, max_tokens=24)
        exported, whole = (own_format(running, f"openvino-{kind}", tmp_path / kind) for kind in (bits, "fp32"))
        small, large = ((each / "openvino_model.bin").stat().st_size for each in (exported, whole))
        assert small < part * large
        with opened(CASE, exported, tmp_path / "run") as client:
            again = running.answers(prompts, client, max_tokens=24)
        assert [each.token_ids for each in found] == [each.token_ids for each in again]
        ours = running.answers(prompts, running.ours, max_tokens=24)
        alike = sum(one.token_ids == other.token_ids for one, other in zip(found, ours, strict=True))
        assert alike >= 24, [(one.text, other.text) for one, other in zip(found, ours, strict=True)]

"""A pipeline and its engine by itself: who meets whom, what is kept of it, and its table."""

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.contenders import CONTENDERS
from benchmarks.duels import BEAM, DEFAULTS, DUELS, shares
from benchmarks.results import Match, Row, keep_duel, read
from benchmarks.sides import backends, llama_cpp, openvino, vllm
from benchmarks.table import tables
from benchmarks.texts import text_of, words_of
from benchmarks.workload import LONGEST, Item
from millrace.model_manager.backends import openvino as openvino_back_end
from millrace.model_manager.backends import vllm as vllm_back_end
from millrace.model_manager.backends.llama_cpp import loading
from millrace.model_manager.wire.config import ModelConfig

BF16 = Match("opt-125m", "skewed", "bfloat16")


def _row(engine: str, rate: float) -> Row:
    return Row(BF16, engine, rate, [rate - 1, rate + 1], 1500.0, load_s=3.0, machine="A CPU", taken="2026-11-21")


def test_every_side_of_a_duel_is_known_and_its_two_take_the_same_matches() -> None:
    for sides in [*DUELS.values(), *BEAM.values(), *DEFAULTS.values()]:
        assert set(sides) <= set(CONTENDERS)
    for sides in [*DUELS.values(), *DEFAULTS.values()]:
        first, second = (CONTENDERS[side] for side in sides)
        assert (first.dtypes, first.shapes) == (second.dtypes, second.shapes)


def test_rows_of_other_duels_of_the_same_match_stay(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    keep_duel(file, [_row("pipeline-vllm", 90), _row("vllm", 100)])
    keep_duel(file, [_row("pipeline-openvino", 50), _row("openvino", 50)])
    keep_duel(file, [_row("pipeline-vllm", 99), _row("vllm", 100)])
    kept = {row.engine: row.tokens_per_s for row in read(file)}
    assert kept == {"pipeline-openvino": 50, "openvino": 50, "pipeline-vllm": 99, "vllm": 100}


def test_a_line_of_the_table_has_both_and_the_share() -> None:
    table = tables([_row("pipeline-vllm", 90), _row("vllm", 100), _row("pipeline-openvino", 51), _row("openvino", 50)])
    assert "| opt-125m, skewed | `Generate`, tokens/s | by itself, tokens/s | share | load, s | peak, MB |" in table
    assert "| vllm, bfloat16 | 90 (89–91) | 100 (99–101) | 0.90 | 3 / 3 | 1,500 / 1,500 |" in table
    assert "| openvino, bfloat16 | 51 (50–52) | 50 (49–51) | 1.02 |" in table


def test_processor_time_of_both_stands_beside_the_rates_where_it_was_counted() -> None:
    counted = replace(_row("pipeline-vllm", 90), processor_s=1234.56)
    table = tables([counted, replace(_row("vllm", 100), processor_s=23.0), _row("pipeline-torch", 1), _row("torch", 2)])
    assert "| share | processor time, s | load, s | peak, MB |" in table
    assert "| 0.90 | 1,234.6 / 23.0 | 3 / 3 |" in table
    assert "| 0.50 | – / – | 3 / 3 |" in table
    assert "peak memory and processor time of a round, of all processes" in " ".join(table.split())
    assert list(shares([counted])) == [
        "opt-125m skewed bfloat16 pipeline-vllm            90.0 tokens/s,   1500 MB, 1234.6 s of processors"
    ]


def test_a_pipeline_is_set_against_each_side_of_its_match() -> None:
    lines = list(shares([_row("pipeline-vllm", 150), _row("beam-vllm", 100), _row("beam-vllm-32", 125)]))
    assert [line.partition("MB")[2] for line in lines] == ["", ", pipeline 1.50 of it", ", pipeline 1.20 of it"]


def test_a_text_has_as_many_tokens_as_the_ids_that_it_stands_for(tmp_path: Path) -> None:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=bytes_, show_progress=False)
    bpe.train_from_iterator(["the river and the mill, the miller and the wheel of the mill"] * 3, trainer)
    bpe.save(str(tmp_path / "tokenizer.json"))
    item = Item([7, 1234, 99, 500, 8], 1)
    assert len(bpe.encode(text_of(item, words_of(tmp_path))).ids) == 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_openvino_by_itself_has_what_it_has_under_the_pipeline(tmp_path: Path, dtype: str) -> None:
    config = ModelConfig.parse(backends.SETTINGS["openvino"](tmp_path, dtype) | {"backend": "openvino"})
    assert vars(openvino_back_end._scheduler(config, SimpleNamespace())) == openvino.back_end_scheduler()
    properties = openvino_back_end._properties(config, config.dtype, as_it_is=False)
    assert properties == openvino.back_end_properties(dtype, "f32" if dtype == "float32" else "bf16")


def test_llama_cpp_by_itself_has_what_it_has_under_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ggml_type = Enum("ggml_type", ["GGML_TYPE_F16"])

    def params() -> SimpleNamespace:
        """xllamacpp's, with its defaults of what one of the two sets."""
        caches = dict.fromkeys(("cache_type_k", "cache_type_v"), ggml_type.GGML_TYPE_F16)
        parts = {name: SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return SimpleNamespace(n_batch=2048, ui=True, endpoint_slots=True, port=8080, api_keys=[], **caches, **parts)

    library: Any = SimpleNamespace(CommonParams=params, Server=vars, ggml_type=ggml_type)
    monkeypatch.setitem(sys.modules, "xllamacpp", library)
    config = ModelConfig.parse(backends.llama_cpp(tmp_path))
    slots = loading.Slots(config.max_num_seqs, LONGEST)
    ours = vars(loading._params(library, config, tmp_path / "model.gguf", slots, "key"))
    alone = llama_cpp.server(tmp_path, batch=llama_cpp.BATCH)
    assert {name for name in ours if ours[name] != alone[name]} == {"api_keys", "ui", "endpoint_slots", "port"}
    assert ours.keys() == alone.keys()


def test_vllm_by_itself_has_what_it_has_under_the_pipeline(tmp_path: Path) -> None:
    config = ModelConfig.parse(backends.SETTINGS["vllm"](tmp_path, "bfloat16") | {"backend": "vllm"})
    ours = vllm_back_end._arguments(config, tmp_path, ["enforce_eager"])
    alone = {"max_num_batched_tokens": 2048, **ours}  # vLLM's default for what is neither LLM nor its server
    assert {name: alone[name] for name in vllm.BACK_END} == vllm.BACK_END
    assert ours["kv_cache_memory_bytes"] == int(vllm.KV_CACHE_GIB) * 2**30

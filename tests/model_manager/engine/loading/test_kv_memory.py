"""The KV cache's size: from the setting, from the memory there is, never more than can be used."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.model_manager.engine.loading.kv_memory import CachePlan, check_weights, plan_cache
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelDoesNotFit

_MIB, _GIB = 2**20, 2**30


def _plan(*, free: float = 8, reserve: float = 0, positions: int = 2048, **settings: Any) -> CachePlan:
    """A plan with blocks of 16 tokens that take a MiB each; `free` and `reserve` are in GiB."""
    return plan_cache(
        ModelConfig(**settings),
        bytes_per_block=_MIB,
        max_model_len=positions,
        free=int(free * _GIB),
        reserve=int(reserve * _GIB),
    )


def test_the_setting_decides_where_there_is_one() -> None:
    assert _plan(kv_cache_gib=0.5) == CachePlan(num_blocks=512, max_model_len=2048)


def test_without_a_setting_it_takes_a_share_of_what_activations_leave() -> None:
    assert _plan(free=6, reserve=1).num_blocks == 5 * 1024 * 6 // 10


def test_it_is_never_larger_than_all_sequences_at_full_length() -> None:
    assert _plan(max_num_seqs=2, free=100).num_blocks == 2 * 2048 // 16


def test_a_cache_below_the_models_length_lowers_that_length(caplog: pytest.LogCaptureFixture) -> None:
    assert _plan(kv_cache_gib=0.0625) == CachePlan(num_blocks=64, max_model_len=1024)
    assert "max_model_len is 1024, not 2048" in caplog.text


def test_a_length_that_was_asked_for_is_kept_or_refused() -> None:
    with pytest.raises(
        ModelDoesNotFit,
        match=r"2048 tokens takes 128\.00 MiB and 64\.00 MiB.*--kv_cache_gib\) to 0\.125 or.*max_model_len",
    ):
        _plan(kv_cache_gib=0.0625, max_model_len=2048)


def test_a_cache_without_room_for_one_useful_sequence_is_refused() -> None:
    with pytest.raises(ModelDoesNotFit, match=r"one sequence of 256 tokens takes 16\.00 MiB and 6\.14 MiB"):
        _plan(free=0.01)
    with pytest.raises(ModelDoesNotFit, match=r"\d (bytes|KiB|MiB) are set aside"):
        _plan(free=1, reserve=2)


def test_a_model_of_few_positions_needs_no_more_than_those() -> None:
    assert _plan(free=0.01, positions=64) == CachePlan(num_blocks=6, max_model_len=64)


def test_weights_that_exceed_the_memory_are_refused_with_the_numbers() -> None:
    check_weights(_GIB, _GIB)
    with pytest.raises(ModelDoesNotFit, match=r"take 2\.00 GiB and 1\.00 GiB of memory are free"):
        check_weights(2 * _GIB, _GIB)

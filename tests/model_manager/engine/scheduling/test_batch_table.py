from __future__ import annotations

import numpy as np

from millrace.model_manager.engine.scheduling.batch_table import BatchTable, Scheduled
from millrace.model_manager.engine.scheduling.sequence import Sequence
from millrace.model_manager.engine.scheduling.stopping import StopConditions
from millrace.model_manager.wire.messages import Request
from millrace.model_manager.wire.sampling import SamplingParams


def running(table: BatchTable, prompt: list[int], blocks: list[int], computed: int, **params: object) -> Sequence:
    parsed = SamplingParams.parse(params)
    sequence = Sequence(Request("a", prompt, parsed), StopConditions(parsed, 9, (), None), now=0.0)
    sequence.block_table = blocks
    sequence.num_computed_tokens = computed
    table.enter(sequence)
    return sequence


def test_prefill_and_decode_are_packed_row_after_row() -> None:
    table = BatchTable(num_rows=4, max_len=16, block_size=4)
    chunk = running(table, [10, 11, 12, 13, 14, 15, 16], [5, 2], computed=2)
    decode = running(table, [20, 21, 22, 23, 24, 25, 26, 27, 28], [7, 0, 3], computed=8)
    whole = running(table, [30, 31], [1], computed=0)
    step = table.pack([Scheduled(chunk, 3), Scheduled(decode, 1), Scheduled(whole, 2)])
    assert step.token_ids.tolist() == [12, 13, 14, 28, 30, 31]
    assert step.positions.tolist() == [2, 3, 4, 8, 0, 1]
    assert step.slots.tolist() == [22, 23, 8, 12, 4, 5]
    assert step.query_starts.tolist() == [0, 3, 4, 6]
    assert step.context_lens.tolist() == [5, 9, 2]
    assert step.block_tables.tolist() == [[5, 2, 0], [7, 0, 3], [1, 0, 0]]
    assert step.logits_rows.tolist() == [3, 5]


def test_arrays_have_the_types_that_runners_expect() -> None:
    table = BatchTable(num_rows=1, max_len=8, block_size=4)
    step = table.pack([Scheduled(running(table, [1, 2], [0], computed=0), 2)])
    assert {step.token_ids.dtype, step.positions.dtype, step.slots.dtype, step.logits_rows.dtype} == {np.dtype("int64")}
    assert {step.query_starts.dtype, step.context_lens.dtype, step.block_tables.dtype} == {np.dtype("int32")}
    arrays = [array for name, array in vars(step).items() if name != "sampled"]
    assert all(array.flags.c_contiguous for array in arrays)


def test_a_token_that_the_device_alone_knows_is_named_by_its_row() -> None:
    table = BatchTable(num_rows=3, max_len=12, block_size=4)
    known, pending = running(table, [1, 2, 3], [0], computed=1), running(table, [4, 5], [1], computed=2)
    assert not len(table.pack([Scheduled(known, 2)], sampled="last step's").sources)
    pending.await_token(6)
    step = table.pack([Scheduled(known, 2), Scheduled(pending, 1)], sampled="last step's")
    assert (step.sources.tolist(), step.sampled) == ([-1, -1, 6], "last step's")
    assert (step.positions.tolist(), step.context_lens.tolist()) == ([1, 2, 2], [3, 3])


def test_a_step_that_samples_nothing_has_no_logits_rows() -> None:
    table = BatchTable(num_rows=1, max_len=8, block_size=4)
    assert table.pack([Scheduled(running(table, [1, 2, 3], [0], computed=0), 2)]).logits_rows.tolist() == []


def test_new_tokens_and_blocks_are_noted() -> None:
    table = BatchTable(num_rows=1, max_len=8, block_size=4)
    sequence = running(table, [1, 2, 3, 4], [6], computed=4)
    sequence.append(9)
    sequence.block_table.append(2)
    table.add_token(sequence)
    table.add_block(sequence)
    table.check_integrity([sequence])
    step = table.pack([Scheduled(sequence, 1)])
    assert (step.token_ids.tolist(), step.slots.tolist()) == ([9], [8])


def test_a_row_is_clean_for_the_next_one() -> None:
    table = BatchTable(num_rows=1, max_len=16, block_size=4)
    table.leave(running(table, [1] * 9, [4, 5, 6], computed=0, temperature=1.0))
    table.check_integrity([])
    sequence = running(table, [2], [3], computed=0)
    table.check_integrity([sequence])
    assert table.sampling([sequence]).settings["temperature"].tolist() == [0.0]


def test_sampling_rows_are_those_of_the_sequences_asked_for() -> None:
    table = BatchTable(num_rows=2, max_len=16, block_size=4)
    first = running(table, [1], [0], computed=0, temperature=0.5, top_k=3, top_p=0.25, seed=2**63 - 1)
    second = running(table, [1], [1], computed=0, seed=8)
    second.append(4)
    table.add_token(second)
    rows = table.sampling([second, first])
    assert rows.settings["temperature"].tolist() == [0.0, 0.5]
    assert rows.settings["top_k"].tolist() == [0, 3]
    assert rows.settings["top_p"].tolist() == [1.0, 0.25]
    assert rows.settings["seed"].tolist() == [8, 2**63 - 1]
    assert rows.index.tolist() == [1, 0]
    assert [rows.tokens[row, :length].tolist() for row, length in zip(rows.token_rows, rows.lengths, strict=True)] == [
        [1, 4],
        [1],
    ]


def test_drafts_follow_the_last_token_and_have_their_logits_rows() -> None:
    table = BatchTable(num_rows=3, max_len=16, block_size=4)
    guessed = running(table, [1, 2, 3], [6, 1], computed=2)
    plain = running(table, [4, 5], [2], computed=1)
    chunk = running(table, [7, 8, 9], [3], computed=0)
    step = table.pack([Scheduled(guessed, 1).followed_by([20, 21]), Scheduled(plain, 1), Scheduled(chunk, 2)])
    assert step.token_ids.tolist() == [3, 20, 21, 5, 7, 8]
    assert step.slots.tolist() == [26, 27, 4, 9, 12, 13]
    assert step.context_lens.tolist() == [5, 2, 2]
    assert step.logits_rows.tolist() == [0, 1, 2, 3]
    table.check_integrity([guessed, plain, chunk])

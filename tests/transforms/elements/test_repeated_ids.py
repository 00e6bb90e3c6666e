"""Rows that share an id, more of them than travel together."""

from __future__ import annotations

import apache_beam as beam

from millrace import Prompt
from millrace.transforms.elements.repeated_ids import CountRepeatedIds, RepeatedIds, _Ids, repeated_ids
from tests.transforms.running import counters, pipeline


def test_all_rows_that_share_an_id_are_counted() -> None:
    ids = ["same"] * 2500 + [f"own {number}" for number in range(2500)] + ["same"]
    with pipeline() as p:
        prompts = p | beam.Create([Prompt(id=identity, text="t") for identity in ids])
        _ = prompts | CountRepeatedIds()
    assert repeated_ids(counters(p.result)) == RepeatedIds(2500, "same")


def test_ids_of_any_characters_are_compared() -> None:
    ids = ["\0", "line\nline", '"', "ü", "\0"]
    prompts = [Prompt(id=identity, text="t") for identity in ids]
    with pipeline() as p:
        _ = p | beam.Create([0]) | beam.FlatMap(lambda _: prompts) | CountRepeatedIds()
    assert repeated_ids(counters(p.result)) == RepeatedIds(1, "\0")


def test_ids_that_count_up_take_few_bytes_of_the_runner() -> None:
    packing = _Ids()
    packing.start_bundle()
    packs = [pack for number in range(200_000) for pack in packing.process(Prompt(id=f"r{number}", text="t"))]
    packs += packing.finish_bundle()
    assert len({part for part, _ in (pack.value for pack in packs)}) == 64
    assert sum(len(packed) for _, packed in (pack.value for pack in packs)) < 5 * 200_000

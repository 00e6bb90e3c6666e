"""Rows that share an id, more of them than travel together."""

from __future__ import annotations

import apache_beam as beam

from millrace import Prompt
from millrace.transforms.elements.repeated_ids import CountRepeatedIds, RepeatedIds, repeated_ids
from tests.transforms.running import counters, pipeline


def test_all_rows_that_share_an_id_are_counted() -> None:
    ids = ["same"] * 2500 + [f"own {number}" for number in range(2500)] + ["same"]
    with pipeline() as p:
        prompts = p | beam.Create([Prompt(id=identity, text="t") for identity in ids])
        _ = prompts | CountRepeatedIds()
    assert repeated_ids(counters(p.result)) == RepeatedIds(2500, "same")

"""Compares rows extracted with a small and a large budget: held-out documents at 128 tokens and at 1,024.

    python -m tests.truth.budgets --count 1000 --seed 0

Each document of each kind of examples/documents goes through Extract on the embedded model at both budgets. A row that
comes at the smaller budget has to equal the larger budget's, field by field; an answer that is longer than the smaller
budget is a dead letter, and counts as such. Prints what differs; the last line is the count. Exits with 1 if any does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from examples.embedded_model.documents.evaluate import held_out
from examples.embedded_model.documents.questions import DOCUMENT_KINDS, Kind
from millrace import Extract
from millrace.model_manager.wire.config import EMBEDDED_MODEL

FEW, MANY = 128, 1024
LONGER = "ConstraintNotMet"


def main(argv: Sequence[str] | None = None) -> int:
    """1 if anything differs, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.budgets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="documents, of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="of the documents")
    args = parser.parse_args(argv)
    counted: Counter[str] = Counter()
    for name, kind in DOCUMENT_KINDS.items():
        texts = [document.text for document in held_out(kind, args.count // len(DOCUMENT_KINDS), args.seed)]
        few, many = (answers(kind, texts, budget) for budget in (FEW, MANY))
        counted += compared(name, few, many)
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
    print(f"{counted['differ']} of {sum(counted.values())} rows differ ({others})")
    return 1 if counted["differ"] else 0


def compared(name: str, few: dict[int, str], many: dict[int, str]) -> Counter[str]:
    """How the answers at the smaller budget compare; prints those that differ."""
    counted: Counter[str] = Counter()
    for index, found in few.items():
        if found == many[index]:
            counted["equal"] += 1
        elif found == LONGER:
            counted["longer than the budget"] += 1
        else:
            counted["differ"] += 1
            print(f"{name} {index}: at {FEW} tokens {found}\n    at {MANY} {many[index]}", flush=True)
    return counted


def answers(kind: Kind, texts: list[str], max_tokens: int) -> dict[int, str]:
    """Each document's row as JSON, or the class of its error."""
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            extract = Extract(kind.rows, EMBEDDED_MODEL, max_tokens=max_tokens).with_exception_handling()
            rows, letters = pipeline | beam.Create(list(enumerate(texts))) | extract
            told = (
                rows | "Rows" >> beam.MapTuple(lambda index, row: f"{index} {kind.written(row)}"),
                letters | "Letters" >> beam.Map(_error),
            )
            told | beam.Flatten() | beam.io.WriteToText(str(Path(folder) / "answers"))
        lines = [line for file in Path(folder).iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
    return {int(index): answer for index, _, answer in (line.partition(" ") for line in lines)}


def _error(keyed: tuple[int, Any]) -> str:
    index, letter = keyed
    return f"{index} {letter.error}"


if __name__ == "__main__":
    raise SystemExit(main())

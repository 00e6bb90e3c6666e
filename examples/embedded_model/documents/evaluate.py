"""Evaluate a folder through Extract: `python -m examples.embedded_model.documents.evaluate FOLDER`.

Held-out documents of each kind, the rows of examples/documents/rows.py, greedy decoding under their grammars. A field
is right if its value equals the expected one exactly; of a document whose answer fails none is. Prints the share of
right documents and of each right field, the wrong rows on demand, and one line of JSON at the end.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from examples.embedded_model.documents.facts import Document
from examples.embedded_model.documents.questions import DOCUMENT_KINDS, Kind
from examples.embedded_model.split import Split
from millrace import Extract, ModelConfig
from millrace.transforms.models.client import Opener, open_engine_client

EVALUATION_SEED = 31_000
WHOLE = "document"


def held_out(kind: Kind, count: int, seed: int) -> list[Document]:
    """Documents that no training has seen."""
    rng = random.Random(f"{seed}|{kind.name}")
    return [kind.make(rng, Split.HELD_OUT) for _ in range(count)]


def judged(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, bool]:
    """Which fields are right, and whether all of them are."""
    right = {name: name in found and found[name] == value for name, value in expected.items()}
    return right | {WHOLE: all(right.values())}


def _decoded(row: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row, parse_float=Decimal)
    return found


def _right(keyed: tuple[str, Any], name: str) -> Iterator[tuple[str, int]]:
    expected, row = keyed
    given = _decoded(DOCUMENT_KINDS[name].written(row))
    yield from ((field, int(right)) for field, right in judged(_decoded(expected), given).items())


def _wrong(keyed: tuple[str, Any], name: str) -> Iterator[str]:
    expected, row = keyed
    given = DOCUMENT_KINDS[name].written(row)
    if _decoded(given) != _decoded(expected):
        yield f"expected {expected}\nfound    {given}\n"


def extracted(
    kind: Kind,
    documents: list[Document],
    model: ModelConfig,
    out: Path,
    open_client: Opener = open_engine_client,
    *,
    max_tokens: int | None = None,
) -> None:
    """Leaves `right-*`, how many of each field are right as JSON, and `wrong-*`, rows that are not, in a folder."""
    keyed = [(kind.row(document.facts), document.text) for document in documents]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        extract = Extract(kind.rows, model, max_tokens=max_tokens, open_client=open_client).with_exception_handling()
        rows, _ = pipeline | beam.Create(keyed) | extract
        right = rows | beam.FlatMap(_right, kind.name) | beam.CombinePerKey(sum) | "Figures" >> beam.Map(json.dumps)
        right | "Right" >> beam.io.WriteToText(str(out / "right"))
        rows | "Errors" >> beam.FlatMap(_wrong, kind.name) | "Wrong" >> beam.io.WriteToText(str(out / "wrong"))


def _lines(out: Path, name: str) -> list[str]:
    return [line for file in sorted(out.glob(f"{name}-*")) for line in file.read_text().splitlines()]


def evaluate(
    kind: Kind, count: int, seed: int, model: ModelConfig, show_errors: int, max_tokens: int | None = None
) -> dict[str, Any]:
    """The share of right documents, of right fields, and of each field."""
    with tempfile.TemporaryDirectory() as folder:
        extracted(kind, held_out(kind, count, seed), model, Path(folder), max_tokens=max_tokens)
        right = dict(json.loads(line) for line in _lines(Path(folder), "right"))
        wrong = _lines(Path(folder), "wrong")
    names = [member.name for member in kind.record.members]
    fields = {name: right.get(name, 0) / count for name in names}
    shares = {"n": count, WHOLE: right.get(WHOLE, 0) / count, "fields": sum(fields.values()) / len(fields)} | fields
    print(f"{kind.name}: " + ", ".join(f"{name} {share:.2%}" for name, share in shares.items() if name != "n"))
    print("\n".join(wrong[: 3 * show_errors]))
    return shares


def main() -> None:
    """Parse the command line, evaluate every kind, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=1000, help="documents of each kind")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED)
    parser.add_argument("--kinds", nargs="+", choices=list(DOCUMENT_KINDS), default=list(DOCUMENT_KINDS))
    parser.add_argument("--max_tokens", type=int, help="of an answer; Extract's own if left out")
    parser.add_argument("--show-errors", type=int, default=0, help="wrong rows of each kind to print")
    arguments = parser.parse_args()
    model = ModelConfig(model=arguments.folder)
    settings = (arguments.count, arguments.seed, model, arguments.show_errors, arguments.max_tokens)
    print(json.dumps({name: evaluate(DOCUMENT_KINDS[name], *settings) for name in arguments.kinds}))


if __name__ == "__main__":
    main()

"""Write the example documents: `python -m examples.embedded_model.documents.write --out examples/documents`.

Held-out documents as text files, the schemas of their rows, and the rows that are expected. Knows nothing of who reads
them.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from examples.embedded_model.documents.facts import Document
from examples.embedded_model.documents.questions import DOCUMENT_KINDS, Kind
from examples.embedded_model.split import Split
from millrace.transforms.typed.json_schemas import schema_of

WRITE_SEED = 50_000
EACH = 20
_FOLDERS = {"order_rows": "orders", "invoice_rows": "invoices", "review_rows": "reviews"}


def example_documents(kind: Kind) -> list[Document]:
    """The documents of one kind, the same at every call."""
    rng = random.Random(f"{WRITE_SEED}|{kind.name}")
    return [kind.make(rng, Split.HELD_OUT) for _ in range(EACH)]


def files() -> Iterator[tuple[str, str]]:
    """Each file's path below the folder, and its content."""
    for name, kind in DOCUMENT_KINDS.items():
        folder = _FOLDERS[name]
        rows = []
        for number, document in enumerate(example_documents(kind), 1):
            path = f"{folder}/{folder.rstrip('s')}-{number:02d}.txt"
            rows.append(f'{{"id": {json.dumps(path)}, "expected": {kind.row(document.facts)}}}\n')
            yield path, document.text + "\n"
        yield f"{folder}.expected.jsonl", "".join(rows)
        yield f"{folder.rstrip('s')}.json", json.dumps(schema_of(kind.record), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Parse the command line and write every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    for name, content in files():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

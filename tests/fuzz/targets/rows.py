"""Files of rows, and messages of brokers: each row is a prompt or a dead letter, however the file is cut into ranges.

The first byte of an input names the file's extension, the second the shape of its rows, the third a place to cut it.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
import random
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystem import FileMetadata

from millrace.transforms.elements.completions import DeadLetter, Prompt, StructCoder
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.formats import input_format
from millrace.transforms.reading.count import count_rows
from millrace.transforms.reading.file_ranges import FileRange, split_file
from millrace.transforms.reading.read_rows import read_range
from millrace.transforms.reading.row_letters import shortened
from millrace.transforms.streams.broker_messages import BrokerMessage, completed, read_message
from tests.fuzz.target import Defect, Target
from tests.fuzz.trees import ODD, mutated, spliced

_ENDS = (
    *(".jsonl", ".txt", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".csv.bz2", ".jsonl.zst", ".jsonl.xz"),
    *(".csv.deflate", ".parquet.gz", ".txt.lzma", ".md"),
)
_SHAPES = (
    RowShape(),
    RowShape(documents=True),
    RowShape(template="{a}: {b}"),
    RowShape(prompt_column="b", id_column="a"),
    RowShape(row_params=False),
)
_MOST_ROW_BYTES = 4096
_PIECES = ('"', "\n", "\r", ",", "\t", "\0", "\ufeff", '""', "{", "}", "[", "]", ":", "\\", "\\ud800", "é", "1e999")
_HEADER = 3


def run(data: bytes) -> None:
    """All rows of the file, by ranges and whole; and the same bytes as a broker's message."""
    end, shape, cut = (*data[:_HEADER], 0, 0, 0)[:_HEADER]
    content = data[_HEADER:]
    path = str(_folder() / f"rows{_ENDS[end % len(_ENDS)]}")
    Path(path).write_bytes(content)
    _read(path, len(content), _SHAPES[shape % len(_SHAPES)], cut)
    row = read_message(BrokerMessage(content, {"id": "7"}, "topic/1"), _SHAPES[shape % len(_SHAPES)], _MOST_ROW_BYTES)
    _check([row])
    if isinstance(row, Prompt):
        _check([completed(row, {"id": "7"}, _SHAPES[shape % len(_SHAPES)])])


def _read(path: str, size: int, shape: RowShape, cut: int) -> None:
    named = "file" if path.endswith(".md") else None
    count_rows([path], named)
    parts = list(split_file(FileMetadata(path, size), named))
    rows = [row for part in parts for row in read_range(part, shape, _MOST_ROW_BYTES)]
    _check(rows)
    if input_format(path, named) in ("jsonl", "text") and path.endswith((".jsonl", ".txt")):
        whole = FileRange(path, input_format(path), fingerprint=parts[0].fingerprint if parts else None)
        middle = size * cut // 255
        halves = [msgspec.structs.replace(whole, stop=middle), msgspec.structs.replace(whole, start=middle)]
        again = [row for part in halves for row in read_range(part, shape, _MOST_ROW_BYTES)]
        if _ids(again) != _ids(rows):
            raise Defect(f"cut at {middle}, the rows are {_ids(again)}, and {_ids(rows)} otherwise")


def _ids(rows: Iterable[Prompt | DeadLetter]) -> list[tuple[str, str]]:
    return [(type(row).__name__, row.id) for row in rows]


def _check(rows: Iterable[Prompt | DeadLetter]) -> None:
    for row in map(shortened, rows):
        if not isinstance(row, Prompt | DeadLetter):
            raise Defect(f"a row is {type(row).__name__}")
        coder = StructCoder(type(row))
        if coder.decode(coder.encode(row)) != row:
            raise Defect(f"{row} is another row on the way to the next transform")


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-rows-"))


def mutate(data: bytes, source: random.Random) -> bytes:
    """Change a row of lines; or the file's bytes, its extension or shape."""
    header, content = bytearray((data + bytes(_HEADER))[:_HEADER]), data[_HEADER:]
    if source.random() < 0.15:
        header[source.randrange(_HEADER)] = source.randrange(256)
        return bytes(header) + content
    end = _ENDS[header[0] % len(_ENDS)]
    if end.startswith(".parquet"):
        return bytes(header) + (_parquet(source) if source.random() < 0.2 else _scarred(content, source))
    opened, closed = _COMPRESSIONS.get("." + end.rpartition(".")[2], (bytes, bytes))
    if source.random() < 0.1 and closed is not bytes:
        return bytes(header) + _scarred(content, source)
    try:
        lines = opened(content).split(b"\n")
    except Exception:  # it was changed before
        lines = [b'{"prompt":"a"}']
    place = source.randrange(len(lines))
    lines[place] = _changed(lines[place], source)
    return bytes(header) + closed(b"\n".join(lines))


def _scarred(content: bytes, source: random.Random) -> bytes:
    scarred = bytearray(content or b"\0")
    for _ in range(source.choice((1, 2, 8))):
        scarred[source.randrange(len(scarred))] = source.choice((0, 1, 127, 128, 255, source.randrange(256)))
    return bytes(scarred[: source.randrange(len(scarred))] if source.random() < 0.1 else scarred)


def _changed(line: bytes, source: random.Random) -> bytes:
    if source.random() < 0.7:
        try:
            return json.dumps(mutated(json.loads(line), source, ODD)).encode()
        except (ValueError, RecursionError):
            pass
    return spliced(line.decode("latin1"), source, _PIECES).encode("utf-8", "surrogateescape")


def _deflated(data: bytes) -> bytes:
    return zlib.compress(data)


def _zst(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)  # type: ignore[no-any-return]


_COMPRESSIONS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.decompress, lambda data: gzip.compress(data, mtime=0)),
    ".bz2": (bz2.decompress, bz2.compress),
    ".xz": (lzma.decompress, lzma.compress),
    ".lzma": (lzma.decompress, lzma.compress),
    ".deflate": (zlib.decompress, _deflated),
    ".zst": (lambda data: bytes(pa.input_stream(pa.BufferReader(data), "zstd").read()), _zst),
}


def _parquet(source: random.Random) -> bytes:
    columns: dict[str, pa.Array] = {
        "prompt": pa.array(["a", None, "é" * source.randrange(50)]),
        "id": pa.array([1, 2, 2**63 - 1]),
        "time": pa.array(
            [0, -1, 2**53], pa.timestamp(source.choice("s ms us ns".split()), source.choice((None, "UTC")))
        ),
        "span": pa.array([0, -1, 2**53], pa.duration(source.choice("s ms us ns".split()))),
        "list": pa.array([[{"a": [1.5]}], [], None]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "bytes": pa.array([b"\xff", b"", None]),
        "messages": pa.array([[{"role": "user", "content": "x"}], None, []]),
        "max_tokens": pa.array([1, None, -1]),
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "date": pa.array([0, 2**31 - 1, -(2**31)], pa.date32()),
        "decimal": pa.array([None, 1, 2], pa.decimal128(38, source.choice((0, 20)))),
    }
    names = source.sample(sorted(columns), source.randrange(1, 6))
    table = pa.table({name: columns[name] for name in {*names, source.choice(("prompt", "messages"))}})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=source.choice(("none", "snappy", "zstd")), row_group_size=2)
    return sink.getvalue()


def _seeds() -> list[bytes]:
    lines = b"\n".join(
        [
            b'{"id":"x","prompt":"hello","max_tokens":4,"a":1,"b":"two"}',
            b'{"custom_id":"r","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}]}}',
            b'{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"constraint":{"regex":"a"}}',
            b'"bare"',
            b'{"prompt":[1,2,3],"sampling_params":{"temperature":0.5,"stop":["x"]},"id":7}',
            b'{"text":"a document","response_format":{"type":"json_object"}}',
        ]
    )
    table = b'id,prompt,a,b\n1,"hello, ""you""",2,x\r\n2,,"two\nlines",y\n'
    source = random.Random(1)
    made = {
        ".jsonl": lines,
        ".txt": b"one\ntwo\r\n\nthree",
        ".csv": table,
        ".tsv": table.replace(b",", b"\t"),
        ".parquet": _parquet(source),
        ".jsonl.gz": gzip.compress(lines, mtime=0),
        ".csv.bz2": bz2.compress(table),
        ".jsonl.zst": _zst(lines),
        ".jsonl.xz": lzma.compress(lines),
        ".csv.deflate": _deflated(table),
        ".txt.lzma": lzma.compress(b"one\ntwo"),
        ".md": b"# whole\n",
    }
    seeds = [bytes([_ENDS.index(end), shape, 99]) + content for end, content in made.items() for shape in (0, 2)]
    return seeds + [bytes([_ENDS.index(".parquet"), 0, 0]) + _parquet(source) for _ in range(10)]


TARGET = Target(run, mutate, _seeds(), seconds=10, memory=4096, inputs=50_000)

"""The format and the compression of a file, by its name. Opens nothing."""

from __future__ import annotations

from typing import Literal, cast, get_args

from millrace.model_manager.wire.errors import ConfigError

InputFormat = Literal["jsonl", "text", "csv", "parquet", "file"]
"""How a file is read; `file`: whole, as one row."""
NamedFormat = Literal[InputFormat, "documents"]
"""What a user can name; `documents`: tables by their extensions, everything else whole."""
OutputFormat = Literal["jsonl", "parquet", "csv"]

_EXTENSIONS: dict[str, InputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".zstd", ".xz", ".lzma", ".deflate")


def is_compressed(path: str) -> bool:
    """Whether Beam decompresses a file of this name."""
    from apache_beam.io.filesystem import CompressionTypes  # Beam takes seconds to import, and a name's check none

    return bool(CompressionTypes.detect_compression_type(path) != CompressionTypes.UNCOMPRESSED)


def input_format(path: str, named: str | None = None) -> InputFormat:
    """The format `named`, else the extension's, also before a compression's; ConfigError if neither tells."""
    extension = _extension(path)
    if named is not None and checked_input_format(named) == "documents":
        table = _EXTENSIONS.get(extension, "text")
        return "file" if table == "text" else table
    if named is not None:
        return cast(InputFormat, named)
    if extension not in _EXTENSIONS:
        known = ", ".join(sorted(_EXTENSIONS))
        raise ConfigError(f"{path}: no format is known by this extension ({known}); name one with --input_format")
    return _EXTENSIONS[extension]


def format_extension(path: str) -> str:
    """The end of the file's name that tells its format, with the compression's; empty where none does."""
    extension = _extension(path)
    return path[path.lower().rindex(extension) :] if extension in _EXTENSIONS else ""


def checked_input_format(named: str) -> NamedFormat:
    """`named`, if it is a format; else ConfigError."""
    if named not in get_args(NamedFormat):
        raise ConfigError(f"input_format={named!r}: takes {', '.join(get_args(NamedFormat))}")
    return cast(NamedFormat, named)


def delimiter(path: str) -> str:
    """Between the fields of a CSV file of this name."""
    return "\t" if _extension(path) == ".tsv" else ","


def _extension(path: str) -> str:
    name = path.lower().rsplit("/", 1)[-1]
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return "." + name.rpartition(".")[2] if "." in name else ""

"""Which kind of place a name means: a bucket, a hub, or this machine. Asks no network."""

from __future__ import annotations

from pathlib import Path

from .gguf import is_gguf

_BUCKETS = "gs://"


def is_hub_name(model: str) -> bool:
    """True for `org/name` and `org/name/file.gguf`, unless it is the name of something here."""
    is_path = model.startswith(("/", ".", "~")) or in_bucket(model)
    if is_gguf(model):
        return not is_path and model.count("/") == 2 and not Path(model).is_file()
    return not is_path and model.count("/") == 1 and not Path(model).is_dir()


def in_bucket(address: str) -> bool:
    """True for `gs://bucket/folder`."""
    return address.startswith(_BUCKETS)


def bucket_and_name(address: str) -> tuple[str, str]:
    """The bucket of `gs://bucket/folder`, and the rest, which may be empty."""
    bucket, _, name = address.removeprefix(_BUCKETS).partition("/")
    return bucket, name

"""A model's files from a Google Cloud Storage bucket, `gs://bucket/folder`.

STORAGE_EMULATOR_HOST is honoured by Google's client, which also retries what is worth it (5xx, resets, time-outs).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, PreconditionFailed, RetryError, Unauthorized
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage  # type: ignore[import-untyped]
from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

from ..wire.errors import ModelCorrupt, ModelError, ModelNotFound, ModelUnsupported
from .contents import WANTED, is_wanted
from .snapshots import RemoteFile, snapshot
from .sources import Bucket

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FIELDS = "items(name,size,generation,crc32c,contentEncoding),nextPageToken"
_THREADS = 8
_PART_BYTES = 64 * 2**20
"""One stream from the store is slower than most machines' network, so large files are fetched in parallel parts."""
_RETRY = DEFAULT_RETRY
"""Retries for two minutes, with growing pauses."""


def fetch(source: Bucket, cache_dir: Path, wanted: Sequence[str] = WANTED) -> Path:
    """The local copy of a bucket's folder under `cache_dir`: `wanted` files directly in that folder, no deeper.

    Fetched once a machine, and again only when an object there has changed. Raises ModelNotFound for no such bucket or
    nothing in the folder, ModelCorrupt for bytes that do not match their checksum, ModelUnsupported for objects stored
    compressed, ModelError where credentials are missing or do not suffice.
    """
    bucket_name, prefix = _checked(source)
    try:
        with _explained(prefix or bucket_name), closing(storage.Client()) as client:
            bucket = client.bucket(bucket_name)
            files = _list(bucket, prefix, wanted)
            home = cache_dir / "gs" / bucket_name / _folder_name(prefix)
            return snapshot(home, files, partial(_download, bucket, prefix))
    except ModelError as error:
        raise type(error)(f"--model {source.name}: {error}") from error.__cause__


def _checked(source: Bucket) -> tuple[str, str]:
    """Bucket and prefix; the prefix is empty or ends with a slash."""
    bucket, folder = source.bucket_and_prefix
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ModelNotFound(f"--model {source.name}: {bucket!r} is no bucket's name; takes gs://bucket/folder")
    folder = folder.strip("/")
    return bucket, f"{folder}/" if folder else ""


def _folder_name(prefix: str) -> str:
    """A name for the local copy: readable, and different for every prefix."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", prefix.rstrip("/").rsplit("/", 1)[-1])[:64]
    return f"{readable or 'root'}-{hashlib.sha256(prefix.encode()).hexdigest()[:12]}"


def _list(bucket: storage.Bucket, prefix: str, wanted: Sequence[str]) -> list[RemoteFile]:
    blobs = list(bucket.list_blobs(prefix=prefix, delimiter="/", fields=_FIELDS, retry=_RETRY))
    if not blobs:
        raise ModelNotFound("there are no files in that folder of the bucket")
    names = [(blob, blob.name.removeprefix(prefix)) for blob in blobs]
    return [_remote_file(blob, name) for blob, name in names if is_wanted(name, wanted)]


def _remote_file(blob: storage.Blob, name: str) -> RemoteFile:
    if blob.content_encoding == "gzip":
        raise ModelUnsupported(f"{name} is stored compressed; upload it as it is (without gsutil's -z or -Z)")
    if blob.crc32c is None or blob.size is None:
        raise ModelCorrupt(f"{name} has no checksum in the bucket; upload it again")
    return RemoteFile(name=name, size=blob.size, generation=str(blob.generation), crc32c=blob.crc32c)


def _download(
    bucket: storage.Bucket,
    prefix: str,
    wanted: Sequence[tuple[RemoteFile, Path]],
    done: Callable[[RemoteFile], None],
) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch") as pool:
        try:
            pending = [(file, _submit(pool, bucket, prefix, file, target)) for file, target in wanted]
            for file, parts in pending:
                with _explained(file.name):
                    for part in parts:
                        part.result()
                done(file)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _submit(
    pool: ThreadPoolExecutor, bucket: storage.Bucket, prefix: str, file: RemoteFile, target: Path
) -> list[Future[None]]:
    """Begin fetching all parts of an object, pinned to the generation that was listed."""
    with target.open("wb") as opened:
        opened.truncate(file.size)
    blob = bucket.blob(prefix + file.name, generation=int(file.generation))
    return [pool.submit(_download_part, blob, target, start) for start in range(0, file.size, _PART_BYTES)]


def _download_part(blob: storage.Blob, target: Path, start: int) -> None:
    """Checksums are compared over the whole file once it is there, so not here over its parts."""
    with target.open("r+b") as opened:
        opened.seek(start)
        end = start + _PART_BYTES - 1
        blob.download_to_file(opened, start=start, end=end, raw_download=True, checksum=None, retry=_RETRY)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Google's errors as ModelErrors that name what was asked for."""
    try:
        yield
    except DefaultCredentialsError:
        raise ModelError(
            "no Google credentials are found; run `gcloud auth application-default login` or set"
            " GOOGLE_APPLICATION_CREDENTIALS"
        ) from None
    except (Forbidden, Unauthorized, GoogleAuthError) as error:
        raise ModelError(f"access is denied; grant storage.objectViewer ({error})") from None
    except (NotFound, PreconditionFailed) as error:
        raise ModelNotFound(
            f"{name}: no such bucket, or an object in it changed while it was fetched ({error})"
        ) from None
    except (GoogleAPIError, OSError) as error:
        raise ModelError(f"{name} cannot be fetched: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The error after which Google's client stopped retrying."""
    cause = error.cause if isinstance(error, RetryError) and error.cause else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())}"

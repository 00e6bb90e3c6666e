"""An object of a bucket that is written and removed only as long as nobody else has changed it.

Beam's public calls write without a condition; its clients, made of the job's options, can.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from apache_beam.io.filesystems import FileSystems

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.object_stores import GS, S3, explained

_CHANGED = (404, 409, 412)
"""Status of a write whose condition does not hold: the object is gone, is just written by another, or is another."""
_NOT_FOUND = 404
_NOT_IMPLEMENTED = 501


class Found(NamedTuple):
    """An object as it is now."""

    content: bytes
    version: str
    written: datetime


class Unconditional(Exception):
    """The store writes without conditions only."""


class BucketObject(Protocol):
    """Its calls raise StorageError for what the store fails at."""

    def write(self, content: bytes, over: str) -> str | None:
        """Over that version alone, or where there is none ("") → the new version; None if it is another by now.

        Raises Unconditional.
        """

    def read(self) -> Found | None:
        """None where there is none."""

    def remove(self, version: str) -> None:
        """If it is still that version."""


def check_bucket(path: str) -> None:
    """Raises StorageError where S3 cannot be reached, and ConfigError where the bucket is not there.

    Beam's client tries for hours what boto3 has given up: without credentials, or where nothing listens. What the
    credentials may do in the bucket is not asked.
    """
    with explained(path, "reached"):
        client, bucket = _s3_client(path), _s3_place(path)["Bucket"]
        from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]

        try:
            client.head_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == _NOT_FOUND:
                raise ConfigError(f"{path}: there is no bucket {bucket}") from None


def bucket_object(path: str) -> BucketObject:
    """The object at a path of a store that `STORES_WITH_CONDITIONS` names."""
    with explained(path, "written"):
        return STORES_WITH_CONDITIONS[FileSystems.get_scheme(path)](path)


class _GoogleObject:
    """In Cloud Storage; versions are generations."""

    def __init__(self, path: str) -> None:
        from apache_beam.io.gcp.gcsio import parse_gcs_path  # here: local outputs need neither it nor its import
        from google.api_core import exceptions

        bucket, name = parse_gcs_path(path)
        self._path = path
        self._blob = FileSystems.get_filesystem(path)._gcsIO().client.bucket(bucket).blob(name)
        self._changed = (exceptions.NotFound, exceptions.PreconditionFailed)

    def write(self, content: bytes, over: str) -> str | None:
        with explained(self._path, "written"):
            try:
                self._blob.upload_from_string(content, if_generation_match=int(over or 0))
            except self._changed:
                return None
            return str(self._blob.generation)

    def read(self) -> Found | None:
        with explained(self._path, "read"):
            try:
                self._blob.reload()
                return Found(self._blob.download_as_bytes(), str(self._blob.generation), self._blob.updated)
            except self._changed:
                return None

    def remove(self, version: str) -> None:
        with explained(self._path, "removed"), contextlib.suppress(*self._changed):
            self._blob.delete(if_generation_match=int(version))


class _S3Object:
    """In S3; versions are entity tags."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._client = _s3_client(path)
        self._place = _s3_place(path)
        from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]

        self._error = ClientError

    def write(self, content: bytes, over: str) -> str | None:
        condition = {"IfMatch": over} if over else {"IfNoneMatch": "*"}
        written = self._asked("written", self._client.put_object, Body=content, **condition)
        return None if written is None else str(written["ETag"])

    def read(self) -> Found | None:
        with explained(self._path, "read"):
            found = self._asked("read", self._client.get_object)
            return None if found is None else Found(found["Body"].read(), found["ETag"], found["LastModified"])

    def remove(self, version: str) -> None:
        found = self.read()
        if found is not None and found.version == version:  # few stores remove on a condition
            self._asked("removed", self._client.delete_object)

    def _asked(self, done: str, call: Callable[..., Any], **arguments: Any) -> Any:
        """The answer; None where the condition does not hold."""
        with explained(self._path, done):
            try:
                return call(**self._place, **arguments)
            except self._error as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status not in (*_CHANGED, _NOT_IMPLEMENTED) or error.response["Error"]["Code"] == "NoSuchBucket":
                    raise
        if status == _NOT_IMPLEMENTED:
            raise Unconditional
        return None


def _s3_client(path: str) -> Any:
    from apache_beam.io.aws import s3io  # here: local outputs need neither it nor its import

    return s3io.S3IO(options=FileSystems.get_filesystem(path)._options).client.client


def _s3_place(path: str) -> dict[str, str]:
    from apache_beam.io.aws import s3io

    bucket, name = s3io.parse_s3_path(path)
    return {"Bucket": bucket, "Key": name}


STORES_WITH_CONDITIONS: dict[str, Callable[[str], BucketObject]] = {GS: _GoogleObject, S3: _S3Object}
"""By scheme."""

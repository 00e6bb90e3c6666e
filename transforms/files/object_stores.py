"""Object stores: their paths have a scheme, and every request may fail.

A failure becomes one sentence that names the file. Google's client retries by itself, for two minutes, what is worth it
(5xx, 429, resets, timeouts), and so does ours of S3 (s3_client.py); an error that it raises after that is not retried
here. Neither Google's client nor Beam retries an answer that ends early or is missing.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from apache_beam.io.aws.clients.s3.messages import S3ClientError
from apache_beam.io.filesystems import FileSystems
from google.api_core.exceptions import ClientError, RetryError

from millrace.model_manager.wire.errors import ConfigError, MillraceError, StorageError
from millrace.model_manager.wire.extras import pip_install

from .s3_client import GivenUp, RefusedForGood

GS = "gs"
"""The scheme of Google Cloud Storage."""
S3 = "s3"
_PAUSES = (0.1, 0.5)
"""Seconds between one attempt and the next."""
_SHOWN = 500
_QUERY = re.compile(r"\?[^\s\"]+")
"""The query of an address that boto3 names: it may be longer than the rest of the sentence."""

_log = logging.getLogger(__name__)
_FINAL = (RetryError, ClientError, int, S3ClientError, RefusedForGood)
"""What clients raise that have tried again, or for what stays refused."""
_T = TypeVar("_T")


def is_local(path: str) -> bool:
    """Whether the path has no scheme (`gs://`)."""
    return scheme_of(path) is None


def scheme_of(path: str) -> str | None:
    """`gs` of `gs://bucket/file`; None for a local path."""
    scheme: str | None = FileSystems.get_scheme(path)
    return scheme


@contextlib.contextmanager
def explained(path: str, done: str) -> Iterator[None]:
    """Raise what a store raises as StorageError, `<path>: cannot be <done>: …`. Our own errors pass; so do a
    disk's errors, which get the path if they name none.

    Raises ConfigError where the package is missing that Beam reads the store with.
    """
    try:
        yield
    except Exception as error:
        if _lacks_boto3(error):
            raise ConfigError(f"{path}: s3:// needs boto3, which is not installed: {pip_install('s3')}") from None
        if is_local(path) or isinstance(error, MillraceError):
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = path  # a full disk, and a file that is too large, do not name theirs
            raise
        raise StorageError(f"{path}: cannot be {done}: {_reason(error)}") from error


def repeated(path: str, done: str, action: Callable[[], _T]) -> _T:
    """What the action returns; on an object store it is tried again, so it must be one that may be repeated."""
    with explained(path, done):
        for pause in () if is_local(path) else _PAUSES:
            try:
                return action()
            except Exception as error:
                if not _may_pass(error):
                    raise
                _log.warning("%s: cannot be %s, trying again: %s", path, done, _reason(error))
            time.sleep(pause)
        return action()


def _lacks_boto3(error: Exception) -> bool:
    """Beam says so by an assertion, as soon as a path of S3 is looked at."""
    return any(isinstance(cause, AssertionError) and "boto3" in str(cause) for cause in _causes(error))


def _may_pass(error: Exception) -> bool:
    """Whether the client has not yet tried again, and may succeed if it does."""
    return not _lacks_boto3(error) and not any(isinstance(each, _FINAL) for each in _causes(error))


def is_silent(error: Exception) -> bool:
    """Whether a store was asked for minutes, without an answer, before this was raised; else it has refused."""
    return any(isinstance(each, RetryError | GivenUp) for each in _causes(error))


def _causes(error: BaseException) -> list[Any]:
    """What is behind it: Beam's error of a batch holds one for each file, an error or an HTTP status."""
    details = getattr(error, "exception_details", None)
    if details:
        return [
            cause
            for each in details.values()
            for cause in (_causes(each) if isinstance(each, BaseException) else [each])
        ]
    if isinstance(error, StorageError) and error.__cause__ is not None:
        return _causes(error.__cause__)
    return [error]


def _reason(error: Exception) -> str:
    cause = _causes(error)[0]
    if isinstance(cause, RetryError) and cause.cause is not None:
        return f"the store keeps failing: {_in_short(cause.cause)}"
    if isinstance(cause, RefusedForGood):
        said = _QUERY.sub("", _in_short(cause.__cause__))
        return f"the store keeps failing: {said}" if isinstance(cause, GivenUp) else said
    return _in_short(cause)


def _in_short(cause: Any) -> str:
    from google.cloud.storage.exceptions import InvalidResponse  # type: ignore[import-untyped]  # here: see beam_import

    if isinstance(cause, AttributeError):  # what Beam makes of a batch that got no answer at all in its time
        return "it does not answer"
    if isinstance(cause, int):
        return f"it answers {cause}"
    if isinstance(cause, InvalidResponse):
        return f"it answers {cause.response.status_code}"
    text = cause.message if isinstance(cause, S3ClientError) else str(cause)
    return f"{type(cause).__name__}: {' '.join(str(text).split())[:_SHOWN]}"

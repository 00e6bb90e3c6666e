"""Beam's client of S3, with retries that end: a request that fails for two minutes is given up, as by Google's client.

Beam's own makes a request eight times, with pauses of up to five minutes, after boto3 has made it three to five times,
with a minute for each answer: hours, in which a job neither goes on nor ends. Beam asks the module for its client's
class, so ours stands in its place. What boto3 repeats within seconds (5xx, resets) is left to it.

Beam makes one of boto3's clients for each operation, with 0.12 s of processor time. Ours share one.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from apache_beam.io.aws.clients.s3 import boto3_client
from apache_beam.io.aws.clients.s3.messages import CompleteMultipartUploadRequest, GetRequest, S3ClientError
from apache_beam.options.pipeline_options import PipelineOptions, S3Options
from apache_beam.utils.retry import PermanentException

GIVEN_UP_AFTER = 120.0
"""Seconds."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between one attempt and the next; then always the last."""
_KEPT = 60.0
"""Seconds for which a client of boto3 is shared."""
_CONNECTIONS = 64
"""Connections that a client keeps open. More threads than that open new ones."""
_PASSING = (408, 429)
"""Answers below 500 after which a request is made again."""
_REQUESTS = (
    *("get_object_metadata", "get_range", "list", "create_multipart_upload", "upload_part"),
    *("complete_multipart_upload", "delete", "delete_batch", "copy"),
)
_log = logging.getLogger(__name__)


class RefusedForGood(PermanentException):  # type: ignore[misc, unused-ignore]
    """A request that a retry cannot help. Its cause says why."""


class GivenUp(RefusedForGood):
    """A request that failed for two minutes."""


def _repeated(method: Callable[..., Any]) -> Callable[..., Any]:
    """The request, made again for two minutes at most, and by Beam not at all."""
    once = inspect.unwrap(method)

    @functools.wraps(once)
    def request(self: BoundedClient, *arguments: Any) -> Any:
        ends = time.monotonic() + GIVEN_UP_AFTER
        for number, pause in enumerate(itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1]))):
            try:
                return once(self, *arguments)
            except (S3ClientError, AttributeError) as error:  # AttributeError: Beam's, of an upload without an answer
                failed = _passing(error)
                if time.monotonic() + pause > ends:
                    raise GivenUp from failed
                if number == 0:
                    _log.warning("S3 fails, trying again for %.0f s: %s", GIVEN_UP_AFTER, failed)
            time.sleep(pause * random.uniform(0.5, 1.0))
        raise AssertionError("it returns or raises")

    return request


class BoundedClient(boto3_client.Client):  # type: ignore[misc, unused-ignore]
    """Instances with the same settings share a client of boto3. Raises RefusedForGood if boto3 refuses the settings."""

    def __init__(self, options: Any) -> None:
        try:
            self.client = _shared.client(_settings(options))
        except AssertionError:  # there is no boto3
            raise
        except Exception as error:
            raise RefusedForGood from error
        self._download_request = self._download_stream = None
        self._download_pos = 0

    def complete_multipart_upload(self, request: CompleteMultipartUploadRequest) -> None:
        """Make the object of its parts. A store whose answer was lost may answer 404 when it is asked again."""
        try:
            _complete_once(self, request)
        except S3ClientError as error:
            if error.code != 404 or not self._is_complete(request):
                raise

    def _is_complete(self, request: CompleteMultipartUploadRequest) -> bool:
        try:
            hashes = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in request.parts)
            found = _look_once(self, GetRequest(request.bucket, request.object))
        except (ValueError, S3ClientError):  # a store of other hashes, or no right to look
            return False
        etag = f"{hashlib.md5(hashes, usedforsecurity=False).hexdigest()}-{len(request.parts)}"
        return bool(found.etag.strip('"') == etag)


class _Shared:
    """One client of boto3, which many threads may use, for a minute: credentials on disk may be replaced meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_for: tuple[Any, ...] = ()
        self._made_at = 0.0
        self._client: Any = None

    def client(self, settings: Mapping[str, Any]) -> Any:
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        wanted, now = (settings, environment, os.getpid()), time.monotonic()
        with self._lock:
            if wanted != self._made_for or now - self._made_at > _KEPT:
                self._client = _made(settings)
                self._made_for, self._made_at = wanted, now
            return self._client


def _made(settings: Mapping[str, Any]) -> Any:
    boto3 = boto3_client.boto3
    assert boto3 is not None, "Missing boto3 requirement"
    from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]  # here: not all jobs have it

    client = boto3.session.Session().client(**settings, config=Config(max_pool_connections=_CONNECTIONS))
    client.meta.events.register("needs-retry.s3", _wait_once)
    return client


def _settings(options: Any) -> dict[str, Any]:
    """What boto3 makes a client from: Beam's options of S3."""
    is_beams = isinstance(options, PipelineOptions)
    get = functools.partial(getattr, options.view_as(S3Options)) if is_beams else options.get
    return {
        "service_name": "s3",
        "use_ssl": not get("s3_disable_ssl"),
        **{name: get(f"s3_{name}") for name in ("region_name", "api_version", "verify", "endpoint_url")},
        "aws_access_key_id": get("s3_access_key_id"),
        "aws_secret_access_key": get("s3_secret_access_key"),
        "aws_session_token": get("s3_session_token"),
    }


_shared = _Shared()
_complete_once = inspect.unwrap(boto3_client.Client.complete_multipart_upload)
_look_once = inspect.unwrap(boto3_client.Client.get_object_metadata)
for _name in _REQUESTS:
    setattr(BoundedClient, _name, _repeated(getattr(BoundedClient, _name)))
boto3_client.Client = BoundedClient


def _passing(error: Exception) -> BaseException:
    """What boto3 raised, if the request may be made again; raises the error, or RefusedForGood, if not."""
    from botocore import exceptions as boto  # type: ignore[import-untyped, unused-ignore]  # here: not all jobs have it

    code, cause = getattr(error, "code", None), error.__context__
    if cause is None or (code is not None and code < 500 and code not in _PASSING):
        raise error
    is_connection = isinstance(cause, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError)
    if isinstance(cause, boto.BotoCoreError) and not is_connection:
        raise RefusedForGood from cause
    return cause


def _wait_once(caught_exception: Exception | None, **_: Any) -> None:
    """Let boto3 wait for an answer once, for its minute; what it raises here ends its own tries."""
    from botocore import exceptions as boto

    if isinstance(caught_exception, boto.ConnectTimeoutError | boto.ReadTimeoutError):
        raise caught_exception

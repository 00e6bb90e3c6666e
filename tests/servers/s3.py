"""Moto's server, an S3 of this machine's own, behind a proxy that injects faults.

https://github.com/getmoto/moto, in a Python environment of its own. Clients find it by `surroundings`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]

from tests.servers.faulty_http import FaultyProxy, Request
from tests.servers.http_threads import running
from tests.servers.processes import free_port, listens, serving
from tests.servers.python_environment import environment_of


class S3Bucket:
    """Objects by their names, in a bucket of a test's own."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self.surroundings = {
            "AWS_ENDPOINT_URL": proxy.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        """Environment of those that reach it."""
        self._name = f"bucket-{uuid.uuid4().hex}"
        self.address = f"s3://{self._name}"
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://{proxy.upstream}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        self._client.create_bucket(Bucket=self._name)

    def put(self, name: str, content: bytes) -> None:
        """Store an object, past all faults."""
        self._client.put_object(Bucket=self._name, Key=name, Body=content)

    def get(self, name: str) -> bytes:
        """An object's bytes, past all faults."""
        content: bytes = self._client.get_object(Bucket=self._name, Key=name)["Body"].read()
        return content

    def names(self, prefix: str = "") -> list[str]:
        """The objects whose names begin so."""
        listed = self._client.list_objects_v2(Bucket=self._name, Prefix=prefix)
        return sorted(each["Key"] for each in listed.get("Contents", []))


def calls(method: str, part: str) -> Callable[[Request], bool]:
    """Requests of a method whose path and query have that part."""
    return lambda request: request.method == method and part in request.path


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[FaultyProxy]:
    """A running server without buckets, its objects in memory, its log in `folder`; the way to it."""
    port = free_port()
    command = [str(environment_of("moto")), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = serving(command, lambda: listens(port), log=folder / "moto.log")
    with server, running(FaultyProxy(f"127.0.0.1:{port}")) as proxy:
        yield proxy

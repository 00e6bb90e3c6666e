import gc
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.internal.gcp import auth
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp import gcsio_retry
from apache_beam.options.pipeline_options import PipelineOptions
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

from tests.cloud_storage.bucket import Bucket
from tests.servers.fake_gcs import FakeGcs, fake_gcs


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server


@pytest.fixture
def bucket(server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, reached without credentials; clients give up after seconds, not minutes."""
    timeout = socket.getdefaulttimeout()

    def no_credentials(_options: Any) -> None:
        raise DefaultCredentialsError("none")  # type: ignore[no-untyped-call, unused-ignore]

    beams = gcsio_retry.DEFAULT_RETRY_WITH_THROTTLING_COUNTER

    def give_up_after(seconds: float) -> None:
        quick = {"initial": 0.01, "maximum": 0.1, "multiplier": 2.0}
        ours, theirs = (retry.with_timeout(seconds).with_delay(**quick) for retry in (DEFAULT_RETRY, beams))
        monkeypatch.setattr("millrace.model_manager.store.bucket._RETRY", ours)
        monkeypatch.setattr(gcsio_retry, "DEFAULT_RETRY_WITH_THROTTLING_COUNTER", theirs)

    give_up_after(60.0)
    monkeypatch.setattr(auth._Credentials, "_get_credentials_with_retrys", staticmethod(no_credentials))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    FileSystems.set_options(PipelineOptions(["--project=p"]))
    yield Bucket(server, f"bucket-{uuid.uuid4().hex}", give_up_after)
    server.heal()
    server.requests.clear()
    gc.collect()  # sockets that Google's client left, while their warnings are still ignored
    socket.setdefaulttimeout(timeout)  # Beam sets one for the whole process

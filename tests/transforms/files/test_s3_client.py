"""How many of boto3's clients a process makes. What they ask of a server is in tests/cloud_storage."""

import threading

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from millrace.transforms.files.s3_client import BoundedClient


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def test_operations_share_a_client_and_no_download() -> None:
    options = PipelineOptions([])
    one, other = BoundedClient(options), BoundedClient(options)
    assert one.client is other.client
    one._download_pos = 7
    assert other._download_pos == 0

    others: list[BoundedClient] = []
    thread = threading.Thread(target=lambda: others.append(BoundedClient(options)))
    thread.start()
    thread.join()
    assert others[0].client is one.client


def test_other_settings_have_a_client_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = PipelineOptions([])
    before = BoundedClient(options).client
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    after = BoundedClient(options).client
    assert after is not before
    assert after.meta.endpoint_url == "http://127.0.0.1:9"
    elsewhere = BoundedClient(PipelineOptions(["--s3_region_name=eu-west-1"])).client
    assert elsewhere.meta.region_name == "eu-west-1"

"""Two jobs on one output in a bucket: the second is refused while the first renews its claim."""

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.places import bucket_claims
from millrace.pipelines.places.claimant import Claimant
from millrace.pipelines.places.claims import claimed_files
from millrace.transforms.addresses import Files
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import CLOUD_STORAGE
from tests.servers.faulty_http import Lost

pytestmark = CLOUD_STORAGE

CLAIM = "out/.millrace/c.claim"


def claim(bucket: Bucket) -> None:
    with claimed_files("--output", Files(f"{bucket.address}/out/c")):
        assert bucket.names("out/") == [CLAIM]


def test_a_second_job_is_refused_and_the_first_leaves_nothing(bucket: Bucket) -> None:
    with claimed_files("--output", Files(f"{bucket.address}/out/c")):
        with pytest.raises(ConfigError, match=r"another job writes gs://.*/out/c .pid .* is removed"):
            claim(bucket)
        assert bucket.names("out/") == [CLAIM]
    assert bucket.names("out/") == []
    claim(bucket)


def test_a_killed_jobs_claim_is_refused_until_it_is_stale(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(CLAIM, Claimant(1, "gone", "2026-01-01 00:00:00 UTC").encoded())
    with pytest.raises(ConfigError, match="pid 1 on host gone"):
        claim(bucket)
    monkeypatch.setattr(bucket_claims, "STALE_AFTER", -1.0)
    claim(bucket)
    assert bucket.names("out/") == []


def test_a_claim_whose_answer_is_lost_is_ones_own(bucket: Bucket) -> None:
    rule = bucket.server.inject(Lost(), lambda request: "/upload/" in request.path)
    claim(bucket)
    assert rule.happened


def test_a_claim_that_was_taken_over_is_told_and_left(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    other = Claimant(1, "other", "2026-01-01 00:00:00 UTC").encoded()
    path = f"{bucket.address}/{CLAIM}"
    ours = bucket_claims._Claim(path)
    assert ours.take()
    ours.renew()
    assert caplog.messages == []
    bucket.put(CLAIM, other)
    ours.renew()
    assert "another job has taken this output over" in caplog.text
    ours.drop()
    assert bucket.names("out/") == [CLAIM]

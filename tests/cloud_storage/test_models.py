"""Weights on gs:// while requests fail: the whole model, or one sentence that names the file, and nothing half."""

import re
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.errors import ModelCorrupt, ModelError
from tests.cloud_storage.bucket import Bucket
from tests.cloud_storage.faults import ALL_LASTING, CLOUD_STORAGE, PASSING
from tests.model_manager.store import resolving_process
from tests.model_manager.store.checkpoints import contents, write_checkpoint
from tests.servers.fake_gcs import downloads, listings
from tests.servers.faulty_http import Altered, Fault, Reset, Status, Truncated

pytestmark = CLOUD_STORAGE

WEIGHTS = "model.safetensors"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left(cache: Path) -> list[str]:
    """The files of the cache, but for the lock."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.name != "lock")


@pytest.mark.parametrize(
    ("fault", "part"), [(fault, 3 * (number % 2)) for number, fault in enumerate(PASSING)], ids=str
)
@pytest.mark.usefixtures("cache")
def test_a_model_arrives_whole_when_a_download_fails_once(
    bucket: Bucket, tmp_path: Path, fault: Fault, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.model_manager.store.bucket._PART_BYTES", 4000)
    source = write_checkpoint(tmp_path / "source", values=5_000)
    rule = bucket.server.inject(fault, downloads(WEIGHTS), after=part)
    assert contents(resolve(bucket.upload(source, "models/small"))) == contents(source)
    assert rule.happened == 1


@ALL_LASTING
def test_a_model_that_cannot_be_fetched_is_named_and_leaves_what_was_verified_alone(
    bucket: Bucket, tmp_path: Path, cache: Path, fault: Fault
) -> None:
    source = write_checkpoint(tmp_path / "source")
    address = bucket.upload(source, "models/small")
    bucket.inject_for_good(fault, downloads(WEIGHTS))
    with pytest.raises(ModelError, match=re.escape(f"--model {address}: ")) as raised:
        resolve(address)
    assert WEIGHTS in str(raised.value)
    assert isinstance(raised.value, ModelCorrupt) == (fault in (Altered(), Truncated(0, "part")))
    assert not [name for name in left(cache) if name.endswith(".part") or WEIGHTS in name]
    assert not [path for path in cache.rglob("config.json") if not path.parent.name.endswith(".partial")]

    bucket.server.heal()
    bucket.server.requests.clear()
    assert contents(resolve(address)) == contents(source)
    assert len([request for request in bucket.server.requests if downloads("config.json")(request)]) <= 1


@pytest.mark.parametrize("fault", [Status(503), Reset(10)], ids=repr)
@pytest.mark.usefixtures("cache")
def test_a_folder_is_listed_again(bucket: Bucket, tmp_path: Path, fault: Fault) -> None:
    source = write_checkpoint(tmp_path / "source")
    address = bucket.upload(source, "small")
    rule = bucket.server.inject(fault, listings)
    assert contents(resolve(address)) == contents(source)
    assert rule.happened == 1


@pytest.mark.parametrize("fault", [Status(503), Truncated(20, "part")], ids=repr)
def test_a_folder_that_cannot_be_listed_is_named_and_nothing_is_left(
    bucket: Bucket, tmp_path: Path, cache: Path, fault: Fault
) -> None:
    address = bucket.upload(write_checkpoint(tmp_path / "source"), "small")
    bucket.inject_for_good(fault, listings)
    with pytest.raises(ModelError, match=re.escape(f"--model {address}: small/ cannot be fetched")):
        resolve(address)
    assert left(cache) == []


def test_two_processes_at_once_get_one_whole_copy_through_faults(bucket: Bucket, tmp_path: Path, cache: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    address = bucket.upload(source, "shared")
    faults: list[Fault] = [Status(503), Reset(1000), Truncated(500, "part"), Altered()]
    for number, fault in enumerate(faults):
        bucket.server.inject(fault, downloads(".safetensors"), after=2 * number)
    environment = {"STORAGE_EMULATOR_HOST": bucket.server.endpoint, "MILLRACE_CACHE_DIR": str(cache)}
    processes = [resolving_process.start(environment, address) for _ in range(2)]
    folders = {resolving_process.finish(process) for process in processes}
    assert len(folders) == 1
    assert contents(folders.pop()) == contents(source)
    assert not [name for name in left(cache) if name.endswith(".part")]


def test_an_object_that_is_overwritten_while_it_is_fetched_is_told(bucket: Bucket, tmp_path: Path, cache: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    address = bucket.upload(source, "changing")
    bucket.inject_for_good(Status(404), downloads(WEIGHTS))
    with pytest.raises(ModelError, match="changed while it was fetched"):
        resolve(address)
    assert WEIGHTS not in left(cache)

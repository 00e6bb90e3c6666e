"""gs:// addresses, against a real server of the Cloud Storage protocol."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.model_manager.store import resolve
from millrace.model_manager.store.revisions import revision_of
from millrace.model_manager.store.sources import source_of
from millrace.model_manager.wire.errors import ConfigError, ModelCorrupt, ModelError, ModelNotFound, ModelUnsupported
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.store import resolving_process
from tests.model_manager.store.checkpoints import contents, write_checkpoint, write_openvino
from tests.model_manager.store.cloud_storage import BUCKET, CloudStorage
from tests.servers.fake_gcs import downloads
from tests.servers.faulty_http import ALWAYS, Held, Status
from tests.waiting import eventually


def test_a_folder_of_a_bucket_arrives_whole(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    folder = resolve(cloud.upload(source, "models/small"))
    assert contents(folder) == contents(source)
    assert folder.is_relative_to(tmp_path / "cache")


def test_a_gguf_file_of_a_bucket_arrives_without_its_neighbours(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    wanted = write_gguf(source / "q4_0.gguf", "q4_0")
    write_gguf(source / "q8_0.gguf", "q8_0")
    address = f"{cloud.upload(source, 'models/small')}/q4_0.gguf"
    folder = resolve(address)
    assert contents(folder) == {wanted.name: wanted.read_bytes()}
    assert revision_of(source_of(address), folder).startswith("bucket-")


def test_a_folder_in_openvinos_format_arrives_whole(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_openvino(tmp_path / "source")
    assert contents(resolve(cloud.upload(source, "models/small"), backend="openvino")) == contents(source)


def test_the_cache_may_be_named_by_the_caller(cloud: CloudStorage, tmp_path: Path) -> None:
    folder = resolve(cloud.upload(write_checkpoint(tmp_path / "source"), "small"), cache_dir=tmp_path / "elsewhere")
    assert folder.is_relative_to(tmp_path / "elsewhere")


def test_the_cache_is_under_home_by_default(
    cloud: CloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLRACE_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = resolve(cloud.upload(write_checkpoint(tmp_path / "source"), "small"))
    assert folder.is_relative_to(tmp_path / "home" / ".cache" / "millrace")


def test_sharded_weights_arrive_with_their_index(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=3)
    assert contents(resolve(cloud.upload(source, "sharded"))) == contents(source)


def test_a_large_file_arrives_in_parts_in_their_places(
    cloud: CloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.model_manager.store.bucket._PART_BYTES", 1000)
    source = write_checkpoint(tmp_path / "source", values=5_000)
    assert contents(resolve(cloud.upload(source, "large"))) == contents(source)
    assert cloud.proxy.downloads.count("model.safetensors") == 21


def test_only_what_a_model_needs_is_fetched(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    wanted = contents(source)
    for name in ("pytorch_model.bin", "modeling_evil.py", "training_args.pt", "README.md"):
        (source / name).write_bytes(b"left out")
    address = cloud.upload(source, "crowded")
    cloud.upload(write_checkpoint(tmp_path / "deeper", seed=1), "crowded/onnx")
    assert contents(resolve(address)) == wanted


def test_an_unchanged_folder_is_not_fetched_again(cloud: CloudStorage, tmp_path: Path) -> None:
    address = cloud.upload(write_checkpoint(tmp_path / "source"), "small")
    first = resolve(address)
    cloud.proxy.requests.clear()
    assert resolve(address + "/") == first
    assert cloud.proxy.downloads == []


def test_a_changed_object_is_fetched_again_and_no_other(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    address = cloud.upload(source, "changing")
    before = resolve(address)
    old = contents(before)
    cloud.proxy.requests.clear()

    changed = "model-00001-of-00002.safetensors"
    (source / changed).write_bytes((write_checkpoint(tmp_path / "other", shards=2, seed=7) / changed).read_bytes())
    cloud.bucket.blob(f"changing/{changed}").upload_from_filename(source / changed)
    after = resolve(address)

    assert contents(after) == contents(source)
    assert cloud.proxy.downloads == [changed]
    assert contents(before) == old, "who still reads the old folder is not disturbed"


def test_a_file_removed_from_the_cache_is_fetched_again(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    address = cloud.upload(source, "small")
    (resolve(address) / "model.safetensors").unlink()
    cloud.proxy.requests.clear()
    assert contents(resolve(address)) == contents(source)
    assert cloud.proxy.downloads == ["model.safetensors"]


def test_of_several_processes_one_downloads(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    address = cloud.upload(source, "shared")
    processes = [resolving_process.start(cloud.environment, address) for _ in range(3)]
    folders = {resolving_process.finish(process) for process in processes}
    assert len(folders) == 1
    assert contents(folders.pop()) == contents(source)
    assert sorted(cloud.proxy.downloads) == sorted(contents(source))


def test_a_download_killed_half_way_leaves_nothing_that_looks_whole_and_is_finished_by_the_next(
    cloud: CloudStorage, tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    address = cloud.upload(source, "killed")
    reached, release = threading.Event(), threading.Event()
    cloud.proxy.inject(Held(reached, release), downloads("model-00001-of-00002.safetensors"))
    with resolving_process.start(cloud.environment, address) as process:
        assert reached.wait(60)
        eventually(lambda: [*(tmp_path / "cache").rglob("model-00000-of-00002.safetensors")])
        process.kill()
    assert {path.parent.suffix for path in (tmp_path / "cache").rglob("*.safetensors*")} == {".partial"}

    release.set()
    cloud.proxy.requests.clear()
    assert contents(resolve(address)) == contents(source)
    assert not list((tmp_path / "cache").rglob("*.partial"))
    assert "model-00000-of-00002.safetensors" not in cloud.proxy.downloads, "what was verified is kept"


def test_bytes_damaged_in_the_store_end_in_model_corrupt(cloud: CloudStorage, tmp_path: Path) -> None:
    address = cloud.upload(write_checkpoint(tmp_path / "source"), "rotten")
    stored = next(path for path in (tmp_path / "objects").rglob("*model.safetensors") if path.is_file())
    damaged = bytearray(stored.read_bytes())
    damaged[-5] ^= 0x40
    stored.write_bytes(damaged)
    with pytest.raises(ModelCorrupt, match="does not match its checksum"):
        resolve(address)


def test_weights_truncated_before_the_upload_end_in_model_corrupt(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ModelCorrupt, match="not a whole safetensors file"):
        resolve(cloud.upload(source, "short"))


@pytest.mark.usefixtures("cloud")
def test_a_missing_bucket_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="no such bucket"):
        resolve("gs://no-such-bucket-here/model")


def test_a_missing_folder_is_not_found(cloud: CloudStorage, tmp_path: Path) -> None:
    cloud.upload(write_checkpoint(tmp_path / "source"), "models/small")
    with pytest.raises(ModelNotFound, match="no files in that folder"):
        resolve(f"gs://{BUCKET}/models/smal")
    with pytest.raises(ModelNotFound, match="no files in that folder"):
        resolve(f"gs://{BUCKET}/models")


@pytest.mark.parametrize("address", ["gs://", "gs:///model", "gs://../x", "gs://UPPER/x", "gs://a/x", "gs://.hidden/x"])
def test_what_is_no_bucket_name_is_not_found(address: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no bucket's name"):
        resolve(address, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_names_in_a_bucket_cannot_climb_out_of_the_cache(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    folder = resolve(cloud.upload(source, "a/%2e%2e/x..y"))
    assert folder.resolve().is_relative_to((tmp_path / "cache" / "gs" / BUCKET).resolve())
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"gs"}


def test_an_object_stored_compressed_is_refused(cloud: CloudStorage, tmp_path: Path) -> None:
    address = cloud.upload(write_checkpoint(tmp_path / "source"), "zipped")
    blob = cloud.bucket.blob("zipped/config.json")
    blob.content_encoding = "gzip"
    blob.upload_from_string(b"\x1f\x8b")
    with pytest.raises(ModelUnsupported, match=r"config\.json is stored compressed"):
        resolve(address)


def test_only_pickled_weights_are_refused(cloud: CloudStorage, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match="no weights in safetensors format"):
        resolve(cloud.upload(source, "pickled"))


def test_a_revision_of_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="revision='main'"):
        resolve("gs://bucket/model", "main")


def test_a_denied_access_is_named(cloud: CloudStorage, tmp_path: Path) -> None:
    address = cloud.upload(write_checkpoint(tmp_path / "source"), "secret")
    cloud.proxy.inject(Status(403), lambda _: True, ALWAYS)
    with pytest.raises(ModelError, match=r"--model gs://.*access is denied; grant storage\.objectViewer"):
        resolve(address)


def test_missing_credentials_are_named(tmp_path: Path) -> None:
    """The home folder has no credentials, and there is no metadata server to ask."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = kept | {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}
    command = [sys.executable, "-m", resolving_process.__name__, "gs://some-bucket/model"]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(outcome.stdout)["kind"] == ModelError.__name__
    assert "GOOGLE_APPLICATION_CREDENTIALS" in outcome.stdout

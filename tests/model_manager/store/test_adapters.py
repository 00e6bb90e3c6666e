"""LoRA adapters by folder, gs:// address and hub name, against real servers of both protocols."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.client.adapter_lookup import Adapters
from millrace.model_manager.store import find_adapter
from millrace.model_manager.store.adapters import digest_of
from millrace.model_manager.store.contents import ADAPTER_FILES
from millrace.model_manager.wire.errors import InvalidRequest, ModelNotFound
from millrace.model_manager.wire.request import Adapter
from tests.model_manager.store import model_hub
from tests.model_manager.store.checkpoints import contents, write_adapter
from tests.model_manager.store.cloud_storage import CloudStorage
from tests.model_manager.store.model_hub import ModelHub
from tests.model_manager.store.resolving_process import find
from tests.servers.faulty_http import ALWAYS, Status

OFFLINE = {"HF_HUB_OFFLINE": "1"}
LEFT_OUT = ("README.md", "adapter_model.bin", "optimizer.pt", "tokenizer.json", "training.safetensors")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An adapter as its makers keep it, with much beside it."""
    folder = write_adapter(tmp_path / "source")
    for name in LEFT_OUT:
        (folder / name).write_bytes(b"left out")
    return folder


@pytest.fixture
def hub(tmp_path: Path, source: Path) -> Iterator[ModelHub]:
    with model_hub.serve(tmp_path / "hf") as hub:
        hub.models["org/lora"] = source
        yield hub


def digest(folder: Path) -> str:
    config, weights = ((folder / name).read_bytes() for name in ADAPTER_FILES)
    return digest_of(config, weights)


def check_is_copy(adapter: Adapter, name: str, source: Path) -> None:
    """The adapter is a copy of the two files, and its digest is made of their content."""
    assert contents(Path(adapter.folder)) == {file: (source / file).read_bytes() for file in ADAPTER_FILES}
    assert (adapter.name, adapter.digest) == (name, digest(source))


def test_a_folder_is_used_where_it_is(source: Path) -> None:
    assert find_adapter(str(source)) == Adapter(str(source), str(source), digest(source))


# ── gs:// ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_adapter_in_a_bucket_arrives_whole_and_nothing_else(cloud: CloudStorage, source: Path) -> None:
    address = cloud.upload(source, "loras/a")
    check_is_copy(find_adapter(address), address, source)
    assert sorted(cloud.proxy.downloads) == sorted(ADAPTER_FILES)


def test_an_unchanged_one_is_not_fetched_again_and_a_changed_one_is_another(
    cloud: CloudStorage, source: Path, tmp_path: Path
) -> None:
    address = cloud.upload(source, "a")
    before = find_adapter(address)
    cloud.proxy.requests.clear()
    assert find_adapter(address) == before
    assert cloud.proxy.downloads == []
    changed = write_adapter(tmp_path / "changed", seed=1)
    cloud.upload(changed, "a")
    after = find_adapter(address)
    check_is_copy(after, address, changed)
    check_is_copy(before, address, source)  # requests that were sent with it still find it
    assert after.digest != before.digest


def test_adapters_of_the_same_content_have_one_digest_wherever_they_are(cloud: CloudStorage, source: Path) -> None:
    addresses = [cloud.upload(source, name) for name in ("a", "b")]
    assert len({find_adapter(each).digest for each in [*addresses, str(source)]}) == 1


@pytest.mark.parametrize("file", ADAPTER_FILES)
def test_a_bucket_that_lacks_a_file(cloud: CloudStorage, source: Path, file: str) -> None:
    (source / file).unlink()
    with pytest.raises(ModelNotFound, match=f"has no {file}, which an adapter consists of"):
        find_adapter(cloud.upload(source, "a"))


def test_what_is_wrong_with_an_adapter_in_a_bucket_is_its_requests_trouble_alone(
    cloud: CloudStorage, source: Path
) -> None:
    good, denied = cloud.upload(source, "good"), cloud.upload(source, "denied")
    adapters = Adapters(1)
    assert adapters.of(good) == find_adapter(good)
    cloud.proxy.inject(Status(403), lambda _: True, ALWAYS)
    with pytest.raises(InvalidRequest, match=f"^adapter {denied}: access is denied; grant storage"):
        adapters.of(denied)
    with pytest.raises(InvalidRequest, match=r"^adapter gs://UPPER/x: .*no bucket's name"):
        adapters.of("gs://UPPER/x")
    assert adapters.of(good) is not None


# ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_adapter_on_the_hub_arrives_whole_and_nothing_else(hub: ModelHub, source: Path) -> None:
    found = find(hub.environment, "org/lora")
    check_is_copy(found, "org/lora", source)
    assert sorted(hub.downloads) == sorted(ADAPTER_FILES)
    hub.downloads.clear()
    assert find(hub.environment | OFFLINE, "org/lora") == found
    assert hub.downloads == []


def test_a_hub_name_that_lacks_a_file(hub: ModelHub, source: Path) -> None:
    (source / "adapter_config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"has no adapter_config\.json, which an adapter consists of"):
        find(hub.environment, "org/lora")


def test_a_folder_here_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_adapter(tmp_path / "org" / "lora")
    monkeypatch.chdir(tmp_path)
    assert find_adapter("org/lora") == Adapter("org/lora", str(folder), digest(folder))

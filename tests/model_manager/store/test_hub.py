"""Hub names, against a real server of the hub's protocol; each in a process of its own, as the client reads its
environment when it is imported.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ModelCorrupt, ModelError, ModelNotFound, ModelUnsupported
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.store.checkpoints import contents, write_checkpoint
from tests.model_manager.store.model_hub import COMMIT, ModelHub, serve
from tests.model_manager.store.resolving_process import finish, run, start

OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    with serve(tmp_path / "hf") as hub:
        hub.models["org/small"] = write_checkpoint(tmp_path / "source", shards=2)
        yield hub


def test_a_hub_name_arrives_whole_and_without_code_or_pickles(hub: ModelHub) -> None:
    source = hub.models["org/small"]
    wanted = contents(source)
    for name in ("pytorch_model.bin", "modeling_evil.py", "README.md", "consolidated.safetensors"):
        (source / name).write_bytes(b"left out")
    assert contents(run(hub.environment, "org/small")) == wanted
    assert sorted(hub.downloads) == sorted(wanted)


def test_of_gguf_files_the_named_one_is_fetched_with_its_other_parts(hub: ModelHub) -> None:
    source = hub.models["org/small"]
    for name in ("q8_0.gguf", "q4_0-00001-of-00002.gguf", "q4_0-00002-of-00002.gguf"):
        write_gguf(source / name, fields={"general.name": name})
    assert set(contents(run(hub.environment, "org/small/q8_0.gguf"))) == {"q8_0.gguf"}
    hub.downloads.clear()
    assert run(hub.environment, "org/small/q4_0-00001-of-00002.gguf", COMMIT).name == COMMIT
    assert sorted(hub.downloads) == ["q4_0-00001-of-00002.gguf", "q4_0-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match=r"org/small/q5\.gguf: no such file"):
        run(hub.environment, "org/small/q5.gguf")


def test_a_revision_may_be_a_commit(hub: ModelHub) -> None:
    assert run(hub.environment, "org/small", COMMIT).name == COMMIT


def test_what_was_fetched_is_not_fetched_again_and_works_offline(hub: ModelHub) -> None:
    folder = run(hub.environment, "org/small")
    hub.downloads.clear()
    assert run(hub.environment, "org/small") == folder
    assert run(hub.environment | OFFLINE, "org/small") == folder
    assert hub.downloads == []


def test_of_several_processes_one_downloads_each_file(hub: ModelHub) -> None:
    processes = [start(hub.environment, "org/small") for _ in range(2)]
    assert len({finish(process) for process in processes}) == 1
    assert sorted(hub.downloads) == sorted(contents(hub.models["org/small"]))


def test_offline_without_a_copy_is_not_found(hub: ModelHub) -> None:
    with pytest.raises(ModelNotFound, match=r"--model org/small: is not in the hub's cache"):
        run(hub.environment | OFFLINE, "org/small")
    assert hub.downloads == []


def test_a_hub_out_of_reach_is_not_found(hub: ModelHub) -> None:
    """Port 9 (discard) has no listener."""
    with pytest.raises(ModelNotFound, match="out of reach"):
        run(hub.environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}, "org/small")


def test_an_unknown_name_is_not_found(hub: ModelHub) -> None:
    with pytest.raises(ModelNotFound, match=r"--model org/nobody: no such folder here and no such model on the hub"):
        run(hub.environment, "org/nobody")


def test_an_unknown_revision_is_not_found(hub: ModelHub) -> None:
    with pytest.raises(ModelNotFound, match="no revision 'nightly'"):
        run(hub.environment, "org/small", "nightly")


@pytest.mark.parametrize("name", ["org/..", "or g/small", "org/sm--all", "org/small.git"])
def test_what_is_no_hub_name_is_not_found(hub: ModelHub, name: str) -> None:
    with pytest.raises(ModelNotFound, match="neither a folder"):
        run(hub.environment, name)


def test_a_gated_model_says_what_to_do(hub: ModelHub) -> None:
    hub.gated.add("org/small")
    with pytest.raises(ModelError, match="HF_TOKEN"):
        run(hub.environment, "org/small")


def test_a_file_shorter_than_announced_ends_in_model_corrupt(hub: ModelHub) -> None:
    hub.truncated = "model-00001-of-00002.safetensors"
    with pytest.raises(ModelCorrupt, match="size that the hub announced"):
        run(hub.environment, "org/small")


def test_only_pickled_weights_are_refused(hub: ModelHub, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "pickled")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    hub.models["org/pickled"] = source
    with pytest.raises(ModelUnsupported, match="no weights in safetensors format"):
        run(hub.environment, "org/pickled")

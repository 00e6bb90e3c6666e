import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.model_manager.wire.errors import ModelNotFound
from millrace.pipelines.places.checkpoint_size import weights_bytes
from tests.model_manager.backends.gguf_files import write_gguf
from tests.model_manager.store.checkpoints import write_checkpoint, write_openvino
from tests.model_manager.store.model_hub import ModelHub, serve

ASKS = """
import sys
from millrace.model_manager.wire.errors import MillraceError
from millrace.pipelines.places.checkpoint_size import weights_bytes
for model in sys.argv[1:]:
    try:
        print(weights_bytes(model))
    except MillraceError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    with serve(tmp_path / "hf") as hub:
        yield hub


def asked(hub: ModelHub, *models: str) -> list[str]:
    """A line each, from a process of its own: the hub's client reads its environment when it is imported."""
    command = [sys.executable, "-c", ASKS, *models]
    ended = subprocess.run(command, env=os.environ | hub.environment, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_the_hub_says_how_large_weights_are_and_none_is_fetched(hub: ModelHub, tmp_path: Path) -> None:
    source = hub.models["org/small"] = write_checkpoint(tmp_path / "source", shards=3)
    wanted = size(source)
    (source / "consolidated.safetensors").write_bytes(b"left out")
    (source / "pytorch_model.bin").write_bytes(b"left out")
    said, told = asked(hub, "org/small", "org/none")
    assert said == str(wanted)
    assert hub.downloads == []
    assert told.startswith("ModelError --model org/none: the hub does not say how large it is: RepositoryNotFoundError")


def test_of_gguf_files_the_named_one_counts(hub: ModelHub, tmp_path: Path) -> None:
    source = hub.models["org/small"] = tmp_path / "source"
    source.mkdir()
    write_gguf(source / "q4_0.gguf", "q4_0")
    write_gguf(source / "q8_0.gguf", "q8_0")
    said, told = asked(hub, "org/small/q4_0.gguf", "org/small/q5.gguf")
    assert said == str((source / "q4_0.gguf").stat().st_size)
    assert weights_bytes(str(source / "q8_0.gguf")) == (source / "q8_0.gguf").stat().st_size
    assert "there are no q5.gguf files" in told


def test_of_a_model_in_an_engines_own_format_the_files_of_it_count(tmp_path: Path) -> None:
    folder = write_openvino(tmp_path / "model")
    assert weights_bytes(str(folder), backend="openvino") == sum(
        path.stat().st_size for path in folder.glob("openvino_*")
    )


def test_a_folder_and_the_embedded_model_are_measured_here(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    assert weights_bytes(str(folder)) == size(folder)
    assert weights_bytes("millrace-tiny") > 5_000_000
    with pytest.raises(ModelNotFound):
        weights_bytes(str(tmp_path / "none"))

"""A revision of a model's contents: the same in every process, and another for other contents."""

import shutil
from pathlib import Path

import pytest

from millrace.model_manager.store.revisions import check_revision, revision_of
from millrace.model_manager.store.sources import source_of
from millrace.model_manager.wire.errors import ModelCorrupt
from tests.model_manager.store.checkpoints import header_length, write_checkpoint, write_openvino
from tests.model_manager.store.model_hub import COMMIT


def revision(folder: Path) -> str:
    return revision_of(source_of(str(folder)), folder)


def write_at(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def test_equal_folders_have_one_revision_wherever_and_whenever_they_were_written(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "a", shards=2)
    second = shutil.copytree(first, tmp_path / "b", copy_function=shutil.copyfile)
    (second / "README.md").write_text("not a part of the model")
    assert revision(first) == revision(second)
    assert revision(first).startswith("folder-")


def test_other_weights_settings_or_templates_are_another_revision(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", values=100_000)
    seen = {revision(folder)}
    weights = folder / "model.safetensors"
    places = header_length(weights), weights.stat().st_size // 2 + 40, weights.stat().st_size - 4
    for place in places:
        write_at(weights, place, b"\x00\x00\x80\x3f")
        seen.add(revision(folder))
    (folder / "config.json").write_text('{"model_type": "opt"}')
    seen.add(revision(folder))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    seen.add(revision(folder))
    assert len(seen) == 1 + len(places) + 2


def test_other_weights_in_an_engines_own_format_are_another_revision(tmp_path: Path) -> None:
    folder = write_openvino(tmp_path / "model")
    seen = {revision(folder)}
    (folder / "openvino_model.xml").write_text("<net version='2'/>")
    seen.add(revision(folder))
    write_openvino(folder, seed=1)
    assert len(seen) == 2
    assert revision(folder) not in seen


def test_a_damaged_folder_has_a_revision_too(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    for damage in (b"", b"\xff" * 20, b"\x02" + b"\0" * 7 + b"[]"):
        (folder / "model.safetensors").write_bytes(damage)
        assert revision(folder).startswith("folder-")


def test_a_folder_of_the_hubs_cache_is_known_by_its_commit(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "snapshots" / COMMIT)
    assert revision_of(source_of("org/small"), folder) == COMMIT


def test_what_came_from_a_bucket_is_known_by_what_was_listed_there(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "0123456789abcdef")
    assert revision_of(source_of("gs://bucket/small"), folder) == "bucket-0123456789abcdef"


def test_a_folder_that_was_written_since_is_told(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    before = revision(folder)
    check_revision("m", folder, before)
    write_checkpoint(folder, seed=1)
    with pytest.raises(ModelCorrupt, match="put other weights into another folder"):
        check_revision("m", folder, before)
    check_revision("m", folder, COMMIT)
    check_revision("m", folder, None)

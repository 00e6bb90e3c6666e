from pathlib import Path

import pytest

from millrace.model_manager.store import resolve, resolve_tokenizer
from tests.model_manager.store.checkpoints import contents, write_checkpoint
from tests.model_manager.store.cloud_storage import serve


def test_of_a_bucket_only_what_is_not_weights_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "source", shards=2)
    with serve(tmp_path / "objects") as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        address = cloud.upload(source, "models/small")
        folder = resolve_tokenizer(address, cache_dir=tmp_path / "cache")
        assert contents(folder).keys() == {name for name in contents(source) if "safetensors" not in name}
        assert not any("safetensors" in name for name in cloud.proxy.downloads)
        assert contents(resolve(address, cache_dir=tmp_path / "cache")) == contents(source)


def test_a_folder_without_weights_has_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_tokenizer(str(tmp_path)) == tmp_path
    assert resolve_tokenizer("millrace-tiny") == resolve("millrace-tiny")

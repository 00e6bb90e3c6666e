"""A model as a client without its files knows it, and as the manager that finds it knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.model_manager.store.locating import check_tokenizer, located, located_tokenizer, tokenizer_digest
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ModelCorrupt
from tests.model_manager.store.checkpoints import contents, write_checkpoint
from tests.model_manager.store.cloud_storage import CloudStorage


def test_a_client_fetches_the_tokenizer_alone_and_the_manager_knows_it_again(
    cloud: CloudStorage, tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "source")
    config = ModelConfig(model=cloud.upload(source, "models/small"))
    asked, folder = located_tokenizer(config)
    assert asked == config
    assert not [name for name in contents(folder) if "safetensors" in name]
    found, whole = located(asked)
    assert contents(whole) == contents(source)
    assert (found.revision or "").startswith("bucket-")
    check_tokenizer(found, whole, tokenizer_digest(folder))
    (source / "tokenizer.json").write_text((source / "tokenizer.json").read_text() + " ")
    with pytest.raises(ModelCorrupt, match="the tokenizer's files of the client are not the manager's"):
        check_tokenizer(found, source, tokenizer_digest(folder))

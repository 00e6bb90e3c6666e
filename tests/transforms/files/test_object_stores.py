"""What is said of a store that cannot be reached from here."""

import importlib.util

import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.file_systems import match


@pytest.mark.skipif(importlib.util.find_spec("boto3") is not None, reason="boto3 is installed")
def test_a_missing_package_is_named_with_what_installs_it(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError) as caught:
        match("s3://bucket/a.jsonl")
    assert str(caught.value) == "s3://bucket/a.jsonl: s3:// needs boto3: pip install 'beam-millrace[s3]'"
    assert not caplog.records, "nothing is tried again"

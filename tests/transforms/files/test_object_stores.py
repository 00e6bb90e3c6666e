"""What is said of a store that cannot be reached from here, and of a disk that takes no more."""

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.file_systems import create, match


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may have more than a kilobyte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_a_file_that_the_disk_does_not_take_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.jsonl")
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught, create(path) as stream:
        stream.write(b"x" * 100_000)
    assert caught.value.filename == path


def test_a_missing_package_is_named_with_what_installs_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apache_beam.io.aws.clients.s3.boto3_client.boto3", None)
    FileSystems.set_options(PipelineOptions([]))  # as building a pipeline does
    with pytest.raises(ConfigError) as caught:
        match("s3://bucket/a.jsonl")
    assert (
        str(caught.value)
        == "s3://bucket/a.jsonl: s3:// needs boto3, which is not installed: pip install 'beam-millrace[s3]'"
    )
    assert not caplog.records, "nothing is tried again"

"""One job writes an output at a time: a job claims its output before it loads the model, until its process ends.

.millrace/<name>.claim          who writes it: {"pid": 1234, "host": "h", "since": "…"}

On a disk the claim is the file's lock, which the kernel frees however the process ends; bucket_claims.py has the claims
of Cloud Storage and S3. The job that a launcher submitted to another runner goes on without a claim when the
launcher detaches.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.addresses import Files

from ..flags.job_options import JobOptions
from .bucket_claims import claimed_in_bucket
from .bucket_objects import STORES_WITH_CONDITIONS
from .claimant import Claimant, refusal
from .sources_and_sinks import files_at, letters_apart

_ATTEMPTS = 10
"""Another job may remove its claim, and the folder, just when this one opens it."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def claimed(options: JobOptions) -> Iterator[None]:
    """Holds the claims of the job's files; raises ConfigError if another job has one.

    At the end the claims are gone, and folders that were made for them and are empty.
    """
    with contextlib.ExitStack() as claims:
        for flag, address in (("--output", options.output), ("--dead_letters", letters_apart(options))):
            if isinstance(address, Files):
                claims.enter_context(claimed_files(flag, address))
        yield


@contextlib.contextmanager
def claimed_files(flag: str, address: Files) -> Iterator[None]:
    """Holds the claim of one output, which `flag` names."""
    path = files_at(address).claim
    if address.is_local:
        with _claimed_on_disk(Path(path), flag, str(address)):
            yield
    elif address.scheme in STORES_WITH_CONDITIONS:
        with claimed_in_bucket(path, flag, str(address)):
            yield
    else:
        yield


@contextlib.contextmanager
def _claimed_on_disk(path: Path, flag: str, output: str) -> Iterator[None]:
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        try:
            file = _locked(path, flag, output)
        except OSError as error:
            raise ConfigError(
                f"{flag} {output}: no file can be made there: {error.strerror or error}; takes another folder"
            ) from None
        with file:
            try:
                file.truncate(0)
                file.write(Claimant.this_process().encoded())
                file.flush()
                yield
            finally:
                path.unlink(missing_ok=True)  # while it is locked: a job that opened it will see that it is gone
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


def _locked(path: Path, flag: str, output: str) -> BinaryIO:
    for left in reversed(range(_ATTEMPTS)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
            if _lock(file, path, flag, output):
                return file
            file.close()
        except FileNotFoundError:  # another job removed the folder, or none can be made
            if not left:
                raise
    raise ConfigError(f"{flag} {output}: other jobs begin and end there all the time; try again")


def _lock(file: BinaryIO, path: Path, flag: str, output: str) -> bool:
    """False for a file that its job has removed meanwhile; raises ConfigError if another job holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        claimant = Claimant.decoded(file.read())
        file.close()
        raise ConfigError(refusal(flag, output, claimant)) from None
    except OSError as error:
        _log.warning("%s: cannot be locked (%s): no second job on this output is noticed", path, error.strerror)
        return True
    return os.path.samestat(path.stat(), os.fstat(file.fileno()))

"""The claim of an output in Cloud Storage: an object that is made only where there is none, and renewed by its job.

A job that was killed leaves it. Who finds a claim that nobody renewed for some minutes takes it over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from apache_beam.io.filesystems import FileSystems
from google.api_core.exceptions import GoogleAPIError, NotFound, PreconditionFailed

from millrace.model_manager.wire.errors import ConfigError
from millrace.transforms.files.object_stores import explained

from .claimant import Claimant, refusal

RENEWED_EVERY = 60.0
"""Seconds."""
STALE_AFTER = 300.0
"""Seconds; more than the clocks of this machine and of the store differ by."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def claimed_in_bucket(path: str, flag: str, output: str) -> Iterator[None]:
    """Holds the claim; raises ConfigError if another job renews it."""
    claim = _Claim(path)
    with explained(path, "written"):
        if not claim.take():
            claimant = claim.claimant()
            raise ConfigError(
                f"{refusal(flag, output, claimant)}; a job that was killed is forgotten after "
                f"{STALE_AFTER / 60:.0f} minutes, or when {path} is removed"
            )
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(claim, ended), name="renew-claim", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        claim.drop()


def _renew(claim: _Claim, ended: threading.Event) -> None:
    while not ended.wait(RENEWED_EVERY):
        claim.renew()


class _Claim:
    """An object, and the generation of it that is ours."""

    def __init__(self, path: str) -> None:
        self._path = path
        from apache_beam.io.gcp.gcsio import parse_gcs_path  # here: local outputs need neither it nor its import

        bucket, name = parse_gcs_path(path)
        with explained(path, "written"):
            # Beam's public calls cannot write on condition of an object's generation; its client, made of the job's
            # options, can.
            client: Any = FileSystems.get_filesystem(path)._gcsIO().client
        self._blob = client.bucket(bucket).blob(name)
        self._note = Claimant.this_process().encoded()
        self._generation = 0

    def take(self) -> bool:
        """False if another job has it."""
        try:
            self._write(0)
        except (NotFound, PreconditionFailed):
            return self._take_over()
        return True

    def claimant(self) -> Claimant | None:
        """Who has it, if anybody still does."""
        try:
            return Claimant.decoded(self._blob.download_as_bytes())
        except NotFound:
            return None

    def renew(self) -> None:
        """Says that the job still runs."""
        try:
            self._write(self._generation)
        except (NotFound, PreconditionFailed):
            _log.warning("%s: another job has taken this output over, as the claim was not renewed in time", self._path)
        except (GoogleAPIError, OSError) as error:
            _log.warning("%s: the claim cannot be renewed: %s", self._path, error)

    def drop(self) -> None:
        """Another job may have the output from now on."""
        try:
            self._blob.delete(if_generation_match=self._generation)
        except (NotFound, PreconditionFailed):
            pass
        except (GoogleAPIError, OSError) as error:
            _log.warning("%s: the claim cannot be removed: %s", self._path, error)

    def _take_over(self) -> bool:
        try:
            self._blob.reload()
            if (datetime.now(UTC) - self._blob.updated).total_seconds() < STALE_AFTER:
                return False
            self._write(self._blob.generation)
        except (NotFound, PreconditionFailed):
            return False  # somebody else was faster
        return True

    def _write(self, generation: int) -> None:
        """Over that generation of it alone; 0: where there is none. Raises PreconditionFailed."""
        try:
            self._blob.upload_from_string(self._note, if_generation_match=generation)
        except PreconditionFailed:
            self._blob.reload()
            if self._blob.download_as_bytes() != self._note:
                raise
            # else the client tried again what was written, and whose answer was lost
        self._generation = self._blob.generation

"""The claim of an output in a bucket: an object that is made only where there is none, and renewed by its job.

A job that was killed leaves it. Who finds a claim that nobody renewed for some minutes takes it over, and at once the
claim of a process of this machine that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from millrace.model_manager.wire.errors import ConfigError, StorageError

from .bucket_objects import Unconditional, bucket_object
from .claimant import Claimant, refusal
from .lost_stores import is_store_lost

RENEWED_EVERY = 60.0
"""Seconds."""
STALE_AFTER = 300.0
"""Seconds; more than the clocks of this machine and of the store differ by."""
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def claimed_in_bucket(path: str, flag: str, output: str) -> Iterator[None]:
    """Holds the claim; raises ConfigError if another job renews it."""
    claim = _Claim(path)
    try:
        is_taken = claim.take()
    except Unconditional:
        _log.warning("%s: the store cannot hold a claim: see yourself that no other job writes there", output)
        yield
        return
    if not is_taken:
        raise ConfigError(
            f"{refusal(flag, output, claim.claimant())}; a job that was killed is forgotten after "
            f"{STALE_AFTER / 60:.0f} minutes, or when {path} is removed"
        )
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(claim, ended), name="renew-claim", daemon=True)
    renewal.start()
    is_left = False
    try:
        yield
    except BaseException as error:
        is_left = is_store_lost(error)
        raise
    finally:
        ended.set()
        if not is_left:
            renewal.join()
            claim.drop()


def _renew(claim: _Claim, ended: threading.Event) -> None:
    while not ended.wait(RENEWED_EVERY):
        claim.renew()


class _Claim:
    """An object, and the version of it that is ours."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._object = bucket_object(path)
        self._note = Claimant.this_process().encoded()
        self._version = ""

    def take(self) -> bool:
        """False if another job has it; raises Unconditional."""
        if self._write(""):
            return True
        found = self._object.read()
        if found is None:
            return False
        claimant = Claimant.decoded(found.content)
        is_over = claimant is not None and claimant.is_dead()
        if not is_over and (datetime.now(UTC) - found.written).total_seconds() < STALE_AFTER:
            return False
        return self._write(found.version)

    def claimant(self) -> Claimant | None:
        """Who has it, if anybody still does."""
        found = self._object.read()
        return found and Claimant.decoded(found.content)

    def renew(self) -> None:
        """Says that the job still runs."""
        try:
            if not self._write(self._version):
                _log.warning(
                    "%s: another job has taken this output over, as the claim was not renewed in time", self._path
                )
        except (StorageError, OSError) as error:
            _log.warning("the claim of the output is not renewed: %s", error)

    def drop(self) -> None:
        """Another job may have the output from now on."""
        try:
            self._object.remove(self._version)
        except (StorageError, OSError) as error:
            _log.warning("the claim of the output stays: %s", error)

    def _write(self, over: str) -> bool:
        """Over that version of it alone; "": where there is none. False if it is another by now."""
        version = self._object.write(self._note, over)
        if version is None:
            found = self._object.read()
            if found is None or found.content != self._note:
                return False
            version = found.version  # the client tried again what was written, and whose answer was lost
        self._version = version
        return True

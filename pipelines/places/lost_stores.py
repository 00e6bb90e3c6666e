"""A job that ends while the bucket of its output does not answer, or refuses: it asks for nothing more, and says so.

Clients try on for minutes what a store does not answer, and a job that ends looks at its output several times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from millrace.transforms.files.file_systems import exists
from millrace.transforms.files.object_stores import is_local, is_silent
from millrace.transforms.writing.output_files import OutputFiles

_ANSWERS_WITHIN = 5.0
"""Seconds."""
_GOES_ON = "--resume goes on from what is written there"
_AWAY = "does not answer; when it does again"


class _LossNote(str):
    """A note of an error that came with the loss of a store."""


@contextlib.contextmanager
def store_looked_at(files: OutputFiles | None) -> Iterator[None]:
    """What ends the block gets a note if the store of the files is lost: `is_store_lost` of it is then true."""
    try:
        yield
    except BaseException as error:
        note_if_lost(error, files)
        raise


def note_if_lost(error: BaseException, files: OutputFiles | None) -> None:
    """Look at the store of the files, for some seconds; an error that came with its loss gets a note on it."""
    if files is not None and (lost := _lost(files)) is not None:
        error.add_note(_LossNote(f"{_bucket(files)} {lost}, {_GOES_ON}"))


def is_store_lost(error: BaseException | None) -> bool:
    """Whether this error, or what it was raised from, has such a note."""
    return _note_of(error) is not None


def what_is_kept_there(error: BaseException | None, files: OutputFiles) -> str:
    """What a user is told to do, who gets an error that came with the loss of the store, or a failure to look at it."""
    return _note_of(error) or f"{_bucket(files)} does not say what is there; {_GOES_ON}"


def _note_of(error: BaseException | None) -> str | None:
    while error is not None:
        for note in getattr(error, "__notes__", []):
            if isinstance(note, _LossNote):
                return note
        error = error.__cause__ or error.__context__
    return None


def _bucket(files: OutputFiles) -> str:
    return "/".join(files.prefix.split("/")[:3])


def _lost(files: OutputFiles) -> str | None:
    """Why nothing more is to be asked of the store; None where it says if a file is there, as a disk does."""
    if is_local(files.prefix):
        return None
    answers = list[str | None]()

    def ask() -> None:
        try:
            exists(files.settings)
        except Exception as error:  # a store that refuses this refuses all that would be asked
            answers.append(_AWAY if is_silent(error) else "refuses what it is asked; when it allows that again")
        else:
            answers.append(None)

    thread = threading.Thread(target=ask, name="millrace-ask-store", daemon=True)
    thread.start()
    try:
        thread.join(_ANSWERS_WITHIN)
    except KeyboardInterrupt:  # a second one: whoever waits does so no more
        return "was not waited for; once it answers"
    return answers[0] if answers else _AWAY

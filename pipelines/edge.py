"""The edge between a command and its user: any failure becomes one sentence and an exit status.

0    done; rows that failed are dead letters
     (also where the summary of a job that is done cannot be printed: stderr says so)
1    the job failed while it ran, also where its model was lost, or its whole output, with what a resumed one had
     before, holds no completion;
     or, of a command that shows something, stdout cannot be written
2    what was asked for cannot be: a flag, the input, the output, the model
130  interrupted, by Ctrl-C; a stream also by SIGTERM
141  whoever read the output, such as `head`, has had enough; nothing is said
143  interrupted by SIGTERM, a job on files; all else is as at Ctrl-C
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from millrace.model_manager.wire.errors import ConfigError, ErrorInfo, MillraceError, ModelError, ModelLost
from millrace.model_manager.wire.machine import is_shortage, shortage

from .interrupts import CTRL_C, NO_OTHERS, Interrupted, how, noticed

_IN_TRACE = re.compile(r"^(?:[\w.]+\.)?(\w+): (.*?)(?: \[while running '(.*)'\])?$", re.MULTILINE)
_SETTING = re.compile(r"^([a-z_]+)=(?:'([^']*)'|([^':]*)): ")
"""How an error names a setting, `max_tokens=0: `; a command names its flag, `--max_tokens 0: `."""
_OPTIONS = re.compile(r"^(vLLM: )?backend_options: ")
_WHERE = re.compile(r" \[while running '[^']*'\]")
_JOINERS = "\u200c\u200d"
"""What stands between letters of Persian, and makes one picture of several."""
_broken_by: list[BaseException] = []
"""What ended the last command, kept until the process ends: its frames may hold a stream into an object store, which
writes on when it is collected, for minutes if the store is away, and no Ctrl-C ends that.
"""
_log = logging.getLogger(__name__)


def at_the_edge(command: Callable[[], int], *, verbose: bool = False, also: Mapping[int, int] = NO_OTHERS) -> int:
    """The command's exit status; what it raises is told on stderr in one sentence (with the stack, if verbose).

    `also`: signals that interrupt it as Ctrl-C does, and their exit statuses.
    """
    with noticed({**CTRL_C, **also}) as seen:
        try:
            return _flushed(_kept_if_broken(command))
        except Interrupted as error:
            return _tell(str(error), seen[0] if seen else error.status)
        except KeyboardInterrupt:
            return _tell_interrupted(seen)
        except Exception as error:
            if seen:  # in C code, which made another error of it
                return _tell_interrupted(seen)
            if isinstance(error, OSError) and _is_of_stdout(error):
                _forget_stdout()
                return 141 if isinstance(error, BrokenPipeError) else _tell(_lost(error), 1)
            if verbose:
                traceback.print_exc()
            return _tell(*_sentence_and_status(error))


def _kept_if_broken(command: Callable[[], int]) -> int:
    try:
        return command()
    except BaseException as error:
        _broken_by[:] = [error]
        raise


def _tell_interrupted(seen: Sequence[int]) -> int:
    status = seen[0] if seen else 130
    return _tell(how(status), status)


def _flushed(status: int) -> int:
    sys.stdout.flush()
    return status


def _is_of_stdout(error: OSError) -> bool:
    """Whether what cannot be written is the output, and not a file."""
    if isinstance(error, BrokenPipeError):
        return _is_stdout_closed()
    try:
        sys.stdout.flush()  # what was not written is kept, unless PYTHONUNBUFFERED is set
    except OSError as again:
        return again.errno == error.errno
    return False


def _is_stdout_closed() -> bool:
    """Whether what reads the output is gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _forget_stdout() -> None:
    """What is left to print goes nowhere from now on, as the process ends too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lost(error: OSError) -> str:
    return f"stdout cannot be written: {error.strerror}"


def print_at_the_end(text: str) -> None:
    """Print what a job came to. Its work is done: output that cannot be written is no failure, and is logged."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_stdout()
        _log.warning("the job is done, and its summary is lost: %s", _lost(error))


def _sentence_and_status(error: Exception) -> tuple[str, int]:
    ours = unwrapped(error)
    if isinstance(ours, ConfigError | ModelError) and not isinstance(ours, ModelLost):
        return _SETTING.sub(_flag, _OPTIONS.sub("--backend_options: ", str(ours))), 2
    notes = getattr(error, "__notes__", [])
    if ours is not None:
        return "; ".join([f"the job failed: {ours}", *notes]), 1
    if is_shortage(error):
        return f"memory ran out: {shortage()}", 1
    kind, message = _last_of_trace(error)
    return "; ".join([f"the job failed: {kind}: {message}", *notes, "--verbose shows where"]), 1


def _flag(setting: re.Match[str]) -> str:
    return f"--{setting[1]} {setting[2] or setting[3] or repr('')}: "


def unwrapped(error: BaseException | None) -> MillraceError | None:
    """Our error inside of what Beam raises, which may hold it as a cause or only as the text of a worker's trace."""
    while error is not None:
        if isinstance(error, MillraceError):
            return type(error)(_WHERE.sub("", str(error)))
        for kind, message, _ in reversed(_IN_TRACE.findall(str(error))):
            found = ErrorInfo(kind=kind, message=message).exception()
            if type(found).__name__ == kind:
                return found
        error = error.__cause__ or error.__context__
    return None


def _last_of_trace(error: Exception) -> tuple[str, str]:
    """Class and message of the exception that a worker's trace ends with, else of `error` itself."""
    found = _IN_TRACE.findall(str(error))
    kind, message = found[-1][:2] if found else (type(error).__name__, str(error))
    return kind, " ".join(message.split())


def _tell(sentence: str, status: int) -> int:
    with contextlib.suppress(OSError):  # the status says it too
        print(f"millrace: {plain(' '.join(sentence.split()))}", file=sys.stderr, flush=True)
    return status


def plain(text: str) -> str:
    """Without what would steer a terminal: names, reasons and answers may hold anything."""
    return "".join(each if each.isprintable() or each in _JOINERS else "�" for each in text)


def leave(status: int) -> NoReturn:
    """End this process. After a failure at once: threads of the runner may be waiting for what never comes."""
    with contextlib.suppress(OSError):  # at_the_edge has told of what cannot be written
        sys.stdout.flush()
        sys.stderr.flush()
    if status:
        os._exit(status)
    sys.exit(status)

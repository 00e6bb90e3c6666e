"""Where a command meets its user: any failure becomes one sentence and an exit status.

0    done; rows that failed are dead letters
1    the job failed while it ran, or its whole output, with what a resumed one had before, holds no completion
2    what was asked for cannot be: a flag, the input, the output, the model
130  interrupted, by Ctrl-C; a stream also by SIGTERM
141  whoever read the output, such as `head`, has had enough; nothing is said
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import psutil  # type: ignore[import-untyped, unused-ignore]

from millrace.model_manager.wire.errors import ConfigError, ErrorInfo, MillraceError, ModelError

_IN_TRACE = re.compile(r"^(?:[\w.]+\.)?(\w+): (.*?)(?: \[while running '(.*)'\])?$", re.MULTILINE)


_SETTING = re.compile(r"^([a-z_]+)=('?)([^':]*)\2: ")
"""How an error names a setting, `max_tokens=0: `; a command names its flag, `--max_tokens 0: `."""
_OPTIONS = re.compile(r"^(vLLM: )?backend_options: ")
_WHERE = re.compile(r" \[while running '[^']*'\]")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with one sentence on what is kept."""


@contextlib.contextmanager
def interruptible(what_is_kept: Callable[[], str], *, also: tuple[signal.Signals, ...] = ()) -> Iterator[None]:
    """Raise Interrupted at Ctrl-C, whatever Beam, in whose code it arrives, makes of that. In the main thread only.

    `also`: further signals that mean the same.
    """
    seen = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.set()
        signal.default_int_handler(number, frame)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, *also)}
    try:
        yield
    except BaseException:
        if seen.is_set():
            raise Interrupted(f"interrupted; {what_is_kept()}") from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def at_the_edge(command: Callable[[], int], *, verbose: bool = False) -> int:
    """The command's exit status; what it raises is told on stderr in one sentence (with the stack, if verbose)."""
    try:
        return command()
    except KeyboardInterrupt as error:
        return _tell(str(error) or "interrupted", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            return 141
        if verbose:
            traceback.print_exc()
        return _tell(*_sentence_and_status(error))


def _is_stdout_closed() -> bool:
    """Whether what reads the output is gone. What is left to print then goes nowhere, as the process ends."""
    stdout = sys.stdout.fileno()
    poll = select.poll()
    poll.register(stdout, 0)
    if not any(events & select.POLLERR for _, events in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True


def _sentence_and_status(error: Exception) -> tuple[str, int]:
    ours = unwrapped(error)
    if isinstance(ours, ConfigError | ModelError):
        return _SETTING.sub(_flag, _OPTIONS.sub("--backend_options: ", str(ours))), 2
    if ours is not None:
        return f"the job failed: {ours}", 1
    kind, message = _last_of_trace(error)
    notes = getattr(error, "__notes__", [])
    return "; ".join([f"the job failed: {kind}: {message}", *notes, "--verbose shows where"]), 1


def _flag(setting: re.Match[str]) -> str:
    return f"--{setting[1]} {setting[3] or repr('')}: "


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
    print(f"millrace: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return status


def leave(status: int) -> NoReturn:
    """End this process. After a failure at once: threads of the runner may be waiting for what never comes."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        _end_workers()
        os._exit(status)
    sys.exit(status)


def _end_workers() -> None:
    """The worker processes that Beam's runner started from here; the manager ends by itself, it may serve others."""
    workers = [child for child in psutil.Process().children(recursive=True) if _is_worker(child)]
    for worker in workers:
        worker.terminate()
    _, alive = psutil.wait_procs(workers, timeout=3)
    for worker in alive:
        worker.kill()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "sdk_worker_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False

"""All errors, as one tree. The class of an error says who pays for it.

    MillraceError
    ├── ConfigError          a setting is unknown or impossible: the job ends before it starts
    ├── RequestError         wrong with one request: that row goes to the dead letters, no other notices
    │   ├── InvalidRequest       no prompt, a parameter out of range
    │   ├── PromptTooLong        more tokens than the model has positions, or too much for spans
    │   ├── RequestAborted       cancelled by its sender
    │   ├── DeadlineExceeded     its time was up before it had a token, or had met its constraint
    │   ├── ConstraintNotMet     its output would end, or go on, where its constraint does not let it
    │   ├── AnswerRejected       the answer is no value of the type that was asked for
    │   ├── NonFiniteLogits      the model computed NaN or infinity for it
    │   ├── ServerFailed         a server failed at it in every try, and works otherwise
    │   └── EngineKiller         it was running each time that its engine died
    ├── ModelError           wrong with the model or the machine: the job fails at once
    │   ├── ModelNotFound        no such name, folder or bucket
    │   ├── ModelCorrupt         the files do not match their checksums or are not safetensors
    │   ├── ModelUnsupported     an architecture (or tokenizer) that cannot be served right
    │   ├── ModelDoesNotFit      weights or the smallest useful KV cache exceed the memory there is
    │   ├── ModelLoadFailed      anything else that stopped the engine from starting
    │   └── ModelLost            it was loaded, and no request can be answered any more
    ├── StorageError         a file of an object store does not arrive, or stay, as it is: the bundle is retried
    ├── RunnerLost           a server of the job's runner is gone, and maybe the job with it
    ├── WorkerLost           a worker process of Beam's local runner died: a job on files is continued
    └── EngineError          wrong with an engine or the manager: retried elsewhere
        ├── EngineLost           an inference process died more often than its budget allows
        ├── ManagerUnavailable   no manager could be started or reached
        └── ModelReplaced        another model has this one's place: submit the request to that model

An error crosses processes as its class's name and one sentence (`ErrorInfo`); the other side raises that class again.
"""

from __future__ import annotations

import signal
import textwrap
from typing import Self

import msgspec

from .timings import Setback

MOST_CHARACTERS = 2**14
"""The longest sentence of an error that crosses processes; what is longer is cut."""


def counted(number: int, noun: str) -> str:
    """`1 row`, `1,200 rows`: a number with its noun, for sentences."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 34` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(said: object, most: int = 300) -> str:
    """What an engine says of its failure, for a sentence: one line of at most so many characters, cut between words."""
    return textwrap.shorten(str(said), most, placeholder=" …")


class MillraceError(Exception):
    """Root of everything that millrace raises on purpose. Its text is one sentence a user can act on."""

    def info(self) -> ErrorInfo:
        """This error as it crosses processes."""
        return ErrorInfo.of(self, type(self))


class ConfigError(MillraceError, ValueError):
    """A setting is unknown or impossible; the text names it, what it got and what it takes."""


class RequestError(MillraceError):
    """Wrong with one request; no other request is affected."""

    partial = ""
    """The text of its output so far, where there is some."""
    setbacks: tuple[Setback, ...] = ()
    """What held it up before it failed."""


class InvalidRequest(RequestError, ValueError):
    """No prompt, or a parameter out of its range."""


class PromptTooLong(RequestError):
    """The prompt leaves no position for even one generated token, or a document is too long for a grammar of spans."""


class RequestAborted(RequestError):
    """The sender cancelled it."""


class DeadlineExceeded(RequestError):
    """The request's time was up before its first token, or before its output met its constraint."""


class ConstraintNotMet(RequestError):
    """No output that the request's constraint asks for could be generated, in its tokens and by its other rules.
    `partial` is how far it came.
    """


def not_complete(num_tokens: int, max_tokens: int) -> ConstraintNotMet:
    """The error of an output that a limit has cut before it met its constraint."""
    limit = f"max_tokens={max_tokens} allows" if num_tokens >= max_tokens else "the model has positions for"
    return ConstraintNotMet(f"the output is not complete after {counted(num_tokens, 'token')}, and {limit} no more")


class AnswerRejected(RequestError):
    """The answer is no value of the type that was asked for (a class's own checks, or a client without constraints), or
    was cut short.
    """


class NonFiniteLogits(RequestError):
    """The model computed NaN or infinity for this request."""


class ServerFailed(RequestError):
    """A server failed at this request in every try, while its health route answered."""


class EngineKiller(RequestError):
    """This request was running each time that its engine died, so it is not tried again."""


class ModelError(MillraceError):
    """Wrong with the model or the machine; retrying does not help."""


class ModelNotFound(ModelError):
    """No model of that name, folder or bucket."""


class ModelCorrupt(ModelError):
    """The model's files are damaged or of a kind that is not loaded."""


class ModelUnsupported(ModelError):
    """An architecture or tokenizer that cannot be served right."""


class ModelDoesNotFit(ModelError):
    """The weights, or the smallest useful KV cache, exceed the memory there is."""


class ModelLoadFailed(ModelError):
    """The engine could not start for another reason, which the text gives."""


class ModelLost(ModelError):
    """The model was loaded, and then no request could be answered any more: its key was withdrawn, its servers are
    gone, or `millrace stop` ended it.
    """


class StorageError(MillraceError):
    """A file of an object store could not be read or written whole; the text names it. The same may succeed later."""


class RunnerLost(MillraceError):
    """A server of the job's runner is gone. The text says which, and whether the job may go on without it."""


class WorkerLost(MillraceError):
    """A worker process of Beam's local runner ended before its job; the text says which one, and how it ended."""

    how = ""
    """The text without its advice."""
    was_killed = False
    """It did not end for a reason of its own, so that another one may live."""


class EngineError(MillraceError):
    """Wrong with an engine or the manager; the same request may succeed elsewhere."""


class EngineLost(EngineError):
    """An inference process died more often than its budget allows."""


class ManagerUnavailable(EngineError):
    """No manager could be started or reached."""


class ModelReplaced(EngineError):
    """Another model has this one's place: submit the request, which was not sent, to that model."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error on the wire: the class's name and its one sentence."""

    kind: str
    """Class of the error (docs/reference/errors.md)."""
    message: str
    """One sentence."""

    @classmethod
    def of(cls, error: BaseException, otherwise: type[MillraceError]) -> Self:
        """`error` itself where it is millrace's own, else wrapped as `otherwise` with the class that it had."""
        if isinstance(error, MillraceError):
            kind, message = type(error), str(error)
        else:
            kind, message = otherwise, f"{type(error).__name__}: {error}"
        return cls(kind=kind.__name__, message=message[:MOST_CHARACTERS])

    def exception(self) -> MillraceError:
        """The error again, as an instance of the class that was sent."""
        return _classes().get(self.kind, EngineError)(self.message)


def _classes() -> dict[str, type[MillraceError]]:
    found, pending = {MillraceError.__name__: MillraceError}, [MillraceError]
    while pending:
        children = pending.pop().__subclasses__()
        found.update({child.__name__: child for child in children})
        pending.extend(children)
    return found

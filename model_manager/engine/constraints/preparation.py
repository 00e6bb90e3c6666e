"""Sequences whose constraints are being compiled, in threads beside the engine's loop, until they can run; and those
that their budget has cut, until a way to their end is found.

Knows sequences and futures; not what compiling takes. Several sequences with one constraint wait for one compilation;
nothing is kept here. However many wait, a few constraints are compiled at a time, in order of rank, and only of those
that might run soon: grammars of those far down the line would lie about in memory, and there may be more of them than
there is of that. Who needs no compilation, or one that is under way, waits for no other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from ...grammars.compiling import GrammarCompiler
from ...grammars.ends import Ends
from ...grammars.grammar import Grammar
from ...grammars.guide import Guide
from ...wire.constraint import Constraint
from ...wire.errors import InvalidRequest, RequestError
from ..scheduling.sequence import Rank, Sequence
from ..scheduling.sequence_heap import SequenceHeap

_THREADS = 2
_MOST_COMPILING = 16
"""Constraints that are being compiled at a time."""
_MOST_OF_ONE = 16
"""Sequences that wait for the same one."""
_MOST_BEGUN = _MOST_COMPILING * _MOST_OF_ONE + 64
"""Sequences that wait for one, or whose tokens are gone through: there is room for some that wait for none."""
_MOST_AT_ONCE, _MOST_LOOKED_AT = 16, 256
"""Sequences that are begun with, and that are looked at, in one step of the engine."""


class Preparation:
    """Gives sequences their guides."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        """None where the model takes no constraints."""
        self._compiler = compiler
        self._threads: ThreadPoolExecutor | None = None
        self._replaying: ThreadPoolExecutor | None = None
        self._compiling: dict[bytes, Future[Grammar]] = {}
        self._waiting: dict[str, Sequence] = {}
        self._line = SequenceHeap()  # of those not begun
        self._put_off: list[Sequence] = []  # until a compilation has ended
        self._begun: dict[str, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of that id, if it waits here."""
        return self._waiting.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """Have a sequence's constraint compiled in its turn. Raises InvalidRequest where the model takes none."""
        _asked(sequence, self._compiler)
        self._waiting[sequence.request_id] = sequence
        self._line.push(sequence.rank, sequence)

    def close(self, sequence: Sequence) -> None:
        """Have an end found for an output that has ended without one; it is `ready` then."""
        self._waiting[sequence.request_id] = sequence
        self._begun[sequence.request_id] = self._replay(sequence.closing)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._waiting.pop(sequence.request_id, None)
        future = self._begun.pop(sequence.request_id, None)
        if future is not None and future not in self._begun.values():
            future.cancel()  # unless it runs already

    def begin(self, last: Rank | None) -> None:
        """Begin with those whose turn it is; `last` is the rank of those behind whom nobody runs soon, if there are."""
        most = min(len(self._begun) + _MOST_AT_ONCE, _MOST_BEGUN)
        for _ in range(_MOST_LOOKED_AT):
            if len(self._begun) >= most or (sequence := self._line.pop()) is None:
                return
            if last is not None and sequence.rank > last:
                self._line.push(sequence.rank, sequence)
                return
            future = self._future(*_asked(sequence, self._compiler))
            if future is None:
                self._put_off.append(sequence)
            else:
                self._begun[sequence.request_id] = future

    def ready(self) -> Iterator[tuple[Sequence, RequestError | None]]:
        """Those that can run or have ended, and those that cannot and why; they wait here no more."""
        self._forget_compiled()
        for request_id, future in [entry for entry in self._begun.items() if entry[1].done()]:
            sequence, error = self._waiting[request_id], None
            try:
                found = future.result()
                if isinstance(found, Grammar):
                    job = functools.partial(sequence.replayed, _guide(sequence, found))
                    if sequence.given:  # to go through them takes a while, in which it may end and leave
                        self._begun[request_id] = self._replay(job)
                        continue
                    found = job()
                sequence.adopt(found)
            except RequestError as failure:
                error = failure
            self.remove(sequence)
            yield sequence, error

    def wait(self, seconds: float) -> None:
        """Until the first is ready, or others may be begun, at most so long."""
        wait([*self._begun.values(), *self._compiling.values()], seconds, FIRST_COMPLETED)

    def _forget_compiled(self) -> None:
        """Have those that were put off in line again if there is less to wait for than there was."""
        compiling = {key: future for key, future in self._compiling.items() if not future.done()}
        if len(compiling) < len(self._compiling):
            for sequence in self._put_off:
                self._line.push(sequence.rank, sequence)
            self._put_off = []
        self._compiling = compiling

    def _future(self, constraint: Constraint, compiler: GrammarCompiler) -> Future[Grammar] | None:
        """What is being compiled, what need not be, or what is to be from now on; None if enough wait already."""
        key = constraint.key()
        if key in self._compiling and not self._compiling[key].cancelled():
            future = self._compiling[key]
            return future if sum(each is future for each in self._begun.values()) < _MOST_OF_ONE else None
        kept = compiler.kept(constraint)
        if kept is not None:
            ready: Future[Grammar] = Future()
            ready.set_result(kept)
            return ready
        if len(self._compiling) >= _MOST_COMPILING:
            return None
        self._threads = self._threads or ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")
        self._compiling[key] = self._threads.submit(_guarded, functools.partial(compiler.compile, constraint))
        return self._compiling[key]

    def _replay(self, job: Callable[[], Any]) -> Future[Any]:
        """In other threads than those that may be compiling for long."""
        self._replaying = self._replaying or ThreadPoolExecutor(_THREADS, thread_name_prefix="replays")
        return self._replaying.submit(_guarded, job)


def guide_alone(sequence: Sequence, compiler: GrammarCompiler | None) -> None:
    """Give one sequence its guide, in this thread, and have it take the tokens that it brings; raises RequestError."""
    constraint, given = _asked(sequence, compiler)
    sequence.adopt(sequence.replayed(_guide(sequence, given.compile(constraint))))


def _asked(sequence: Sequence, compiler: GrammarCompiler | None) -> tuple[Constraint, GrammarCompiler]:
    constraint = sequence.params.constraint
    assert constraint is not None
    if compiler is None:
        raise InvalidRequest("constraint: takes a model whose folder has a tokenizer.json")
    return constraint, compiler


def _guarded(job: Callable[[], Any]) -> Any:
    """What llguidance does not take is wrong with the request; what else goes wrong is the engine's fault."""
    try:
        return job()
    except RequestError:
        raise
    except BaseException as error:
        if not (isinstance(error, ValueError) or type(error).__name__ == "PanicException"):  # which is no Exception
            raise
        raise InvalidRequest(f"constraint: {type(error).__name__}: {error}") from None


def _guide(sequence: Sequence, grammar: Grammar) -> Guide:
    conditions = sequence.conditions
    size = grammar.tokenizer.vocab_size
    eos, stops = ([token for token in tokens if token < size] for tokens in (conditions.eos, conditions.stop_tokens))
    return Guide(grammar, Ends(eos=eos, stops=stops, ignore_eos=sequence.params.ignore_eos))

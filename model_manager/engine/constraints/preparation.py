"""Sequences that wait for their constraint to be compiled, or for an ending of their cut output; in threads beside the
loop.

Knows sequences and futures; not what compiling takes. Several sequences with one constraint wait for one compilation;
nothing is kept here.

Few constraints are compiled at a time, in order of rank, and only for sequences that might run soon: the grammars of
all waiting sequences could need more memory than the machine has. A sequence without a constraint does not wait.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from ...grammars.compiling import GrammarCompiler
from ...grammars.grammar import Grammar
from ...grammars.guide import Ends, GrammarSlow, Guide
from ...wire.constraint import Constraint
from ...wire.errors import InvalidRequest, RequestError
from ...wire.tally import Tally
from ..scheduling.sequence import QueueRank, Replayed, Sequence
from ..scheduling.sequence_heap import SequenceHeap

_THREADS = 2
_MOST_COMPILING = 16
"""Most constraints that are compiled at a time."""
_MOST_OF_ONE = 16
"""Most sequences that wait for the same compilation."""
_MOST_BEGUN = _MOST_COMPILING * _MOST_OF_ONE + 64
"""Most sequences that wait for a compilation or replay their tokens; leaves room for some that need neither."""
_MOST_AT_ONCE, _MOST_LOOKED_AT = 16, 256
"""Most sequences that are started, and that are examined, in one step of the engine."""


class Preparation:
    """Gives sequences their guides."""

    def __init__(
        self, compiler: GrammarCompiler | None, slowly: Callable[[Callable[[], Any]], Future[Any]] | None = None
    ) -> None:
        """`compiler` is None if the model takes no constraints; `slowly` does what uses a slow grammar."""
        self._compiler = compiler
        self._slowly = slowly or self._replay
        self._threads: ThreadPoolExecutor | None = None
        self._replaying: ThreadPoolExecutor | None = None
        self._compiling: dict[bytes, Future[Grammar]] = {}
        self._waiting: dict[str, Sequence] = {}
        self._priorities = Tally[int]()  # of those that wait for their compilation
        self._closing: set[str] = set()
        self._out_of_line = ""
        """The last one whose compilation was started before its turn in line."""
        self._line = SequenceHeap()  # sequences whose compilation has not started
        self._put_off: list[Sequence] = []  # postponed until a compilation ends
        self._begun: dict[str, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def find(self, request_id: str) -> Sequence | None:
        """The sequence of that id, if it waits here."""
        return self._waiting.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for compilation. Raises InvalidRequest if the model takes no constraints."""
        _asked(sequence, self._compiler)
        self._waiting[sequence.request_id] = sequence
        self._priorities[sequence.rank[0]] += 1
        self._line.push(sequence.rank, sequence)

    def close(self, sequence: Sequence) -> None:
        """Queue a cut output for a search of its ending; it is `ready` afterwards."""
        self._waiting[sequence.request_id] = sequence
        self._closing.add(sequence.request_id)
        self._begun[sequence.request_id] = self._replay(sequence.closing)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        known = self._waiting.pop(sequence.request_id, None) is not None
        if sequence.request_id in self._closing:
            self._closing.remove(sequence.request_id)
        elif known:
            self._priorities[sequence.rank[0]] -= 1
        future = self._begun.pop(sequence.request_id, None)
        if future is not None and future not in self._begun.values():
            future.cancel()  # has no effect once it runs

    @property
    def least_urgent(self) -> int | None:
        """The highest priority number of sequences that wait for their compilation; None if there are none."""
        return max(self._priorities, default=None)

    def begin_longest_waiting(self, most_urgent: float) -> None:
        """Start the next compilation for the first to arrive of those whose number is above the most urgent one's, here
        or elsewhere: it may be promoted. One at a time, whatever else is compiled.
        """
        above = min(most_urgent, min(self._priorities, default=math.inf))
        if len(self._priorities) == 1 and above in self._priorities:
            return
        if self._out_of_line not in self._begun:
            others = (each for each in self._line.sequences() if each.rank[0] > above)
            sequence = min(others, key=lambda each: each.rank[1], default=None)
            future = None if sequence is None else self._future(*_asked(sequence, self._compiler), more=1)
            if sequence is not None and future is not None:
                self._line.remove(sequence.rank)
                self._out_of_line = sequence.request_id
                self._begun[sequence.request_id] = future

    def begin(self, last: QueueRank | None) -> None:
        """Start the next compilations; `last` is the rank behind which no sequence runs soon, if there is one."""
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
        """The sequences that can run or have ended, and those that failed with the reason; they wait no longer."""
        self._forget_compiled()
        for request_id, future in [entry for entry in self._begun.items() if entry[1].done()]:
            sequence, error = self._waiting[request_id], None
            try:
                found = future.result()
                if isinstance(found, Grammar):
                    job = functools.partial(_begun, sequence, found)
                    if found.is_slow or sequence.given:  # takes a while; the sequence may end meanwhile
                        self._begun[request_id] = self._slowly(job) if found.is_slow else self._replay(job)
                        continue
                    found = job()
                sequence.adopt(found)
            except GrammarSlow as slow:
                self._begun[request_id] = self._slowly(slow.args[0])
                continue
            except RequestError as failure:
                error = failure
            self.remove(sequence)
            yield sequence, error

    def wait(self, seconds: float) -> None:
        """Wait until a sequence is ready or another may start, at most this long."""
        wait([*self._begun.values(), *self._compiling.values()], seconds, FIRST_COMPLETED)

    def _forget_compiled(self) -> None:
        """Queue the postponed sequences again if fewer compilations are pending."""
        compiling = {key: future for key, future in self._compiling.items() if not future.done()}
        if len(compiling) < len(self._compiling):
            for sequence in self._put_off:
                self._line.push(sequence.rank, sequence)
            self._put_off = []
        self._compiling = compiling

    def _future(self, constraint: Constraint, compiler: GrammarCompiler, more: int = 0) -> Future[Grammar] | None:
        """The future of a sequence's grammar: running, finished, or new; None if enough are pending. `more` than usual
        may be.
        """
        key = constraint.key()
        if key in self._compiling and not self._compiling[key].cancelled():
            future = self._compiling[key]
            if sum(each is future for each in self._begun.values()) >= _MOST_OF_ONE + more:
                return None
            compiler.counts.hit()
            return future
        kept = compiler.kept(constraint)
        if kept is not None:
            ready: Future[Grammar] = Future()
            ready.set_result(kept)
            return ready
        if len(self._compiling) >= _MOST_COMPILING + more:
            return None
        self._threads = self._threads or ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")
        self._compiling[key] = self._threads.submit(_guarded, functools.partial(compiler.compile, constraint))
        return self._compiling[key]

    def _replay(self, job: Callable[[], Any]) -> Future[Any]:
        """Replay a sequence's tokens; in threads that no long compilation blocks."""
        self._replaying = self._replaying or ThreadPoolExecutor(_THREADS, thread_name_prefix="replays")
        return self._replaying.submit(_guarded, job)


def guide_alone(sequence: Sequence, compiler: GrammarCompiler | None) -> None:
    """Give one sequence its guide in this thread, and replay its tokens; raises RequestError."""
    constraint, given = _asked(sequence, compiler)
    grammar = given.compile(constraint)
    try:
        sequence.adopt(_begun(sequence, grammar))
    except GrammarSlow:  # which it is known to be now
        sequence.adopt(_begun(sequence, grammar))


def _asked(sequence: Sequence, compiler: GrammarCompiler | None) -> tuple[Constraint, GrammarCompiler]:
    constraint = sequence.params.constraint
    assert constraint is not None
    if compiler is None:
        raise InvalidRequest("constraint: takes a model whose folder has a tokenizer.json")
    return constraint, compiler


def _guarded(job: Callable[[], Any]) -> Any:
    """An error of llguidance is the request's; any other is the engine's."""
    try:
        return job()
    except RequestError:
        raise
    except BaseException as error:
        if not (isinstance(error, ValueError) or type(error).__name__ == "PanicException"):  # which is no Exception
            raise
        raise InvalidRequest(f"constraint: {type(error).__name__}: {error}") from None


def _begun(sequence: Sequence, grammar: Grammar) -> Replayed:
    """The sequence's guide after the tokens that it was given; raises GrammarSlow with what is to be done again."""
    guide = _guide(sequence, grammar)
    try:
        replayed = sequence.replayed(guide)
    except GrammarSlow:
        raise GrammarSlow(functools.partial(_begun, sequence, grammar)) from None
    if guide.is_slow and replayed.ending is None:
        guide.go_on()
    return replayed


def _guide(sequence: Sequence, grammar: Grammar) -> Guide:
    conditions = sequence.conditions
    size = grammar.tokenizer.vocab_size
    eos, stops = ([token for token in tokens if token < size] for tokens in (conditions.eos, conditions.stop_tokens))
    return Guide(grammar, Ends(eos=eos, stops=stops, ignore_eos=sequence.params.ignore_eos))

"""Decides which sequences compute how many tokens in the next step.

There is no prefill phase: a sequence has uncomputed tokens, one when it decodes and more when it is new, and each step
hands them out within a budget (as vLLM's V1 does). Knows counts of tokens and blocks; not what tokens mean, nor the
model.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import itemgetter

from .batch_table import BatchTable, Scheduled
from .block_manager import BlockManager
from .prefix_cache import BEING_COMPUTED
from .promotion import PART_OF_BLOCKS, Promotion
from .sequence import QueueRank, Sequence, SequenceStatus
from .waiting_queue import WaitingQueue

LOOK_AHEAD = 64
"""Waiting sequences at the front of the line among which cached beginnings come first."""
MOST_OVERTAKES = 64
"""Most sequences behind a waiting one that may start before it."""
MOST_STEPS_PUT_OFF = 16
"""Most decoding steps in a row that prompts wait for company (`admits_together`)."""


class Scheduler:
    """The sequences that wait, in line by rank, and those that run.

    A sequence is in one of the two or finished, never in both.

    At the front of the line, the sequence with the largest cached beginning is admitted first. A sequence whose next
    block a running one is about to compute waits for that block, and one whose adapter is not loaded waits for the
    adapter. All of these let others pass, but at most MOST_OVERTAKES times. A running sequence that lacks a block takes
    it from the sequence with the highest rank, which goes back to its place in line.

    A waiting sequence is urgent while one of a higher priority number runs. It starts before tokens are handed out. If
    it lacks a row or blocks, the running sequence with the highest rank makes way, but at most one for each urgent one.

    The longest waiting of the less urgent sequences is promoted now and then (`Promotion`): it is the first in line
    until it has had its turn, and preempts nobody to start. If it lacks blocks, others may start before it,
    MOST_OVERTAKES times. Then the running sequences with the highest rank make way for it, one in each step.

    Where steps with prompts cost more to launch than decoding ones, prompts that wait are admitted several at a time.

    docs/explanation/scheduling.md says the same for users.
    """

    def __init__(
        self,
        blocks: BlockManager,
        table: BatchTable,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        admits_together: int = 1,
    ) -> None:
        """`admits_together` prompts, or all that may start, are to fit before one begins beside decoding sequences."""
        assert max_num_batched_tokens >= max_num_seqs  # every decoding sequence gets its token in every step
        self.waiting = WaitingQueue(LOOK_AHEAD)
        self.running: OrderedDict[str, Sequence] = OrderedDict()  # by rank
        self.num_preemptions = 0
        self._blocks = blocks
        self._table = table
        self._max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._admits_together = admits_together
        self._steps_put_off = 0
        self._promotion = Promotion(max_num_seqs)
        self._starved: list[Sequence] = []
        """Running prompts that got no tokens in the last step."""

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.waiting or request_id in self.running

    def find(self, request_id: str) -> Sequence | None:
        """The waiting or running sequence with this id."""
        return self.running.get(request_id) or self.waiting.get(request_id)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it must fit an otherwise empty cache, to its last token."""
        assert sequence.request_id not in self
        self.waiting.add(sequence)

    def schedule(self, beside: int | None = None) -> list[Scheduled]:
        """The next batch: decoding sequences, then prompts begun or urgent, then new ones. Empty only if there are no
        sequences, or only ones that are held or end with a pending token.

        `beside`: the highest priority number of sequences that are not queued yet; None if there are none.
        """
        preemptions = self.num_preemptions
        self._promote()
        self._start_passed()
        self._start_urgent()
        batch = self._decodes()
        budget = self.max_num_batched_tokens - len(batch)
        given = self._prefills(batch, budget)
        if preemptions == self.num_preemptions and (given or not batch or not self._puts_off()):
            self._admit(batch, budget - given)  # not after a preemption: one would only take another's place
        assert batch or all(each.is_held or each.ends_with_pending for each in self.running.values())
        assert batch or self.running or not self.waiting
        self._note_starved(batch)
        most_urgent = self.most_urgent
        self._promotion.count(batch, most_urgent, self._least_urgent_waiting(most_urgent, beside))
        return batch

    def schedules_without_preempting(self) -> bool:
        """True if there are blocks for the next token of each sequence that decodes, and no running sequence is to make
        way for an urgent one.
        """
        if any(self._needs_way(sequence) for sequence in self._urgent()) or self._passed_enough():
            return False
        free, running = self._blocks.num_free, self.running.values()
        return free >= len(running) or free >= sum(self._blocks.needs_block(s) for s in running if _decodes(s))

    def reserve(self, sequence: Sequence, count: int) -> int:
        """Give a running sequence slots for up to `count` draft tokens; returns how many have slots.

        Takes free blocks only and, as in admission, leaves one for each running sequence.
        """
        while self._blocks.needs_block(sequence, ahead=count) and self._blocks.num_free > len(self.running):
            self._blocks.grow(sequence)
            self._table.add_block(sequence)
        while self._blocks.needs_block(sequence, ahead=count):
            count -= 1
        return count

    def computed(self, batch: Iterable[Scheduled]) -> None:
        """Note that the batch's keys and values are computed; drafts count only once they are accepted."""
        for scheduled in batch:
            scheduled.sequence.num_computed_tokens += scheduled.num_tokens - len(scheduled.drafts)

    def accepted(self, sequence: Sequence) -> None:
        """Note that a running sequence's last token was computed already, as its draft."""
        sequence.num_computed_tokens += 1

    def sampled(self, sequence: Sequence) -> None:
        """Note a running sequence's step with finite values: a token was appended, or the sequence ended."""
        self._blocks.commit(sequence)
        if sequence.ending is None:
            self._table.add_token(sequence)
        else:
            self.finish(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """End a running sequence whose logits were not finite; what it computed is never reused."""
        self._blocks.distrust(sequence)
        self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a waiting or running sequence; frees its blocks."""
        if sequence.status is SequenceStatus.RUNNING:
            del self.running[sequence.request_id]
            self._withdraw(sequence)
        else:
            self.waiting.remove(sequence)
        self._promotion.forget(sequence)
        sequence.status = SequenceStatus.FINISHED

    def resize(self, num_blocks: int) -> bool:
        """Use the first `num_blocks` blocks of the cache. Preempts the running sequences that have a block beyond, but
        not those that are held. True if there is none. No token may be pending.
        """
        if num_blocks != self._blocks.num_blocks:
            self._blocks.resize(num_blocks)
        beyond = [sequence for sequence in self.running.values() if self._blocks.is_beyond(sequence)]
        for sequence in reversed(beyond):
            if not sequence.is_held:
                self._preempt(sequence)
        return not any(sequence.is_held for sequence in beyond)

    def check_integrity(self) -> None:
        """Assert the invariants above, and the invariants of blocks and rows."""
        assert not any(request_id in self.waiting for request_id in self.running)
        assert len(self.running) <= self._max_num_seqs
        ranks = [sequence.rank for sequence in self.running.values()]
        assert ranks == sorted(ranks)
        self.waiting.check_integrity()
        self._promotion.check_integrity([*self.running.values(), *self.waiting.values()])
        for sequence in self.running.values():
            assert sequence.status is SequenceStatus.RUNNING
            assert sequence.num_remaining_tokens >= 1 or sequence.is_held
            assert sequence.num_computed_tokens <= len(sequence.block_table) * self._blocks.block_size
        for sequence in self.waiting.values():
            assert sequence.status is SequenceStatus.WAITING
            assert not sequence.block_table
            assert sequence.num_computed_tokens == 0
            assert sequence.overtaken <= MOST_OVERTAKES
        self._blocks.check_integrity(self.running.values())
        self._table.check_integrity(list(self.running.values()))

    def _urgent(self) -> Iterator[Sequence]:
        """Waiting sequences that may start, with a lower priority number than the last running one, in line."""
        for sequence in self.waiting.window.copy():
            if not self.running or sequence.rank[0] >= self._last().rank[0]:
                break
            if sequence.turn_ends is None and self._may_start(sequence):
                yield sequence

    def _last_free(self) -> Sequence:
        """The running sequence with the highest rank that is not held; the one that is given tokens is not."""
        return next(sequence for sequence in reversed(self.running.values()) if not sequence.is_held)

    def _last(self) -> Sequence:
        """The running sequence with the highest rank."""
        return next(reversed(self.running.values()))

    def _needs_way(self, sequence: Sequence) -> bool:
        """True if an urgent sequence lacks a row or blocks, and none was preempted for it."""
        if sequence.has_preempted:
            return False
        no_row = len(self.running) == self._max_num_seqs
        return no_row or not self._blocks.fits(sequence, keep_free=len(self.running))

    @property
    def is_promotion_due(self) -> bool:
        """True if the next step promotes a less urgent sequence that waits, if there is one."""
        return self._promotion.is_due

    @property
    def most_urgent(self) -> float:
        """The lowest priority number of all sequences but promoted ones; infinite if there are none."""
        runs = next((each for each in self.running.values() if each.turn_ends is None), None)
        waits = next((each for each in self.waiting.window if each.turn_ends is None), None)
        return min((each.rank[0] for each in (runs, waits) if each is not None), default=math.inf)

    def _least_urgent_waiting(self, most_urgent: float, beside: int | None) -> int | None:
        """The highest priority number of sequences that more urgent ones may keep from running; None if there are none.
        A running prompt is one of them: it gets what more urgent prompts leave of a step's tokens.
        """
        numbers = [sequence.rank[0] for sequence in self._starved if sequence.rank[0] > most_urgent]
        numbers += [each for each in (self.waiting.least_urgent, beside) if each is not None and each > most_urgent]
        return max(numbers, default=None)

    def _note_starved(self, batch: list[Scheduled]) -> None:
        """Keep the running sequences that have prompts to compute and were given no tokens."""
        several = len(self.running) > 1 and next(iter(self.running.values())).rank[0] < self._last().rank[0]
        given = {scheduled.sequence.request_id for scheduled in batch} if several else ()
        waiting = (each for each in self.running.values() if several and each.num_remaining_tokens > 1)
        self._starved = [each for each in waiting if each.request_id not in given]

    def _promote(self) -> None:
        """End promotions, and begin those that are due."""
        for sequence, rank in self._promotion.end_spent():
            self._move(sequence, rank)
        while self._promotion.is_due:
            most_urgent = self.most_urgent
            lacking = any(each.lacks_adapter for each in self._promotion.promoted)
            found = [self.waiting.longest_waiting(most_urgent, without_adapter=lacking)]
            found += [
                each for each in self._starved if each.status is SequenceStatus.RUNNING and each.turn_ends is None
            ]
            others = [each for each in found if each is not None and each.rank[0] > most_urgent]
            if not others or self._promoted_fill():
                break
            first = min(others, key=lambda each: each.rank[1])
            self._move(first, self._promotion.begin(first))
            if first.lacks_adapter:  # unless it finds it in the next step
                break

    def _promoted_fill(self) -> bool:
        """True if promoted sequences have, or need, so many blocks that no further one is promoted beside them."""
        needed = sum(each.num_tokens // self._blocks.block_size + 1 for each in self._promotion.promoted)
        return needed > self._blocks.num_blocks // PART_OF_BLOCKS

    def _move(self, sequence: Sequence, rank: QueueRank) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            sequence.rank = rank
            self._sort()
        else:
            self.waiting.move(sequence, rank)

    def _passed_enough(self) -> list[Sequence]:
        """Promoted sequences that others have passed as often as they may, and that could start if there were room."""
        first = itertools.takewhile(lambda each: each.turn_ends is not None, self.waiting.window)
        return [each for each in first if each.overtaken >= MOST_OVERTAKES and self._may_start(each)]

    def _start_passed(self) -> None:
        for sequence in self._passed_enough():
            no_row = len(self.running) == self._max_num_seqs
            if no_row or not self._blocks.fits(sequence, keep_free=len(self.running)):
                last = self._last()
                if last.turn_ends is not None or last.num_pending_tokens or last.is_held:
                    break
                self._preempt(last)
            if self._blocks.allocate(sequence, keep_free=len(self.running)):
                self._start(sequence)

    def _start_urgent(self) -> None:
        """Start urgent sequences; `_prefills` gives them their tokens first, since they are first in rank."""
        for sequence in self._urgent():
            if self._needs_way(sequence) and not self._last().num_pending_tokens and not self._last().is_held:
                sequence.has_preempted = True
                self._preempt(self._last())
            if len(self.running) == self._max_num_seqs:
                break
            if not self._blocks.allocate(sequence, keep_free=len(self.running)):
                break
            self._start(sequence)

    def _may_start(self, sequence: Sequence) -> bool:
        """False while a sequence waits for its adapter, for a block that a running one is about to compute, or for one
        before it that may not be overtaken any more.
        """
        if sequence.lacks_adapter or self._blocks.outlook(sequence) == BEING_COMPUTED:
            return False
        passed = (each for each in self.waiting.ahead_of(sequence) if each.overtaken >= MOST_OVERTAKES)
        return not any(sequence.adapter is not None or not _awaits_adapter(each) for each in passed)

    def _decodes(self) -> list[Scheduled]:
        """One token for each sequence that decodes.

        A sequence that lacks a block takes it from the last in rank, which comes later in this order, so nothing is
        taken back from the batch.
        """
        batch = []
        for sequence in list(self.running.values()):
            if sequence.status is SequenceStatus.RUNNING and _decodes(sequence):
                while self._blocks.needs_block(sequence) and not self._blocks.num_free:
                    self._preempt(self._last_free())
                if sequence.status is SequenceStatus.RUNNING:
                    self._give_slot(sequence)
                    batch.append(Scheduled(sequence, 1))
        return batch

    def _give_slot(self, sequence: Sequence) -> None:
        if self._blocks.needs_block(sequence):
            self._blocks.grow(sequence)
            self._table.add_block(sequence)

    def _prefills(self, batch: list[Scheduled], budget: int) -> int:
        """Tokens of running sequences that have more than one to compute; they have their blocks."""
        given = 0
        for sequence in self.running.values():
            if given == budget:
                break
            if sequence.num_remaining_tokens > 1:
                most = budget - given if sequence.turn_ends is None else self._most_of_promoted(budget) - given
                chunk = min(sequence.num_remaining_tokens, most)
                if chunk > 0:
                    batch.append(Scheduled(sequence, chunk))
                    given += chunk
        return given

    def _most_of_promoted(self, budget: int) -> int:
        """Tokens that prompts of promoted sequences may have: half of a step's while more urgent ones have prompts."""
        starting = self.waiting.window if len(self.running) < self._max_num_seqs else ()
        most_urgent = self.most_urgent
        urgent = (each for each in itertools.chain(self.running.values(), starting) if each.rank[0] == most_urgent)
        return max(1, budget // 2) if any(each.num_remaining_tokens > 1 for each in urgent) else budget

    def _puts_off(self) -> bool:
        """True if prompts wait until more of them can be admitted in one step; but not for long."""
        ready = filter(self._may_start, self.waiting.window)
        together = list(itertools.islice(ready, self._admits_together)) if self._admits_together > 1 else []
        rows = len(self.running) + len(together)
        fit = len(together) < 2 or (
            rows <= self._max_num_seqs and self._blocks.fit_together(together, keep_free=rows - 1)
        )
        self._steps_put_off = 0 if fit or self._steps_put_off == MOST_STEPS_PUT_OFF else self._steps_put_off + 1
        return self._steps_put_off > 0

    def _admit(self, batch: list[Scheduled], budget: int) -> None:
        """Start waiting sequences while there are tokens, rows, and blocks for all tokens of the next one.

        One block per running sequence stays free; else these would soon preempt the new one.
        """
        if not self.waiting or budget <= 0 or len(self.running) == self._max_num_seqs:
            return
        total = budget
        for sequence in self._by_preference():
            if not self._may_start(sequence):
                continue
            if not self._blocks.allocate(sequence, keep_free=len(self.running)):
                if sequence.turn_ends is not None and sequence.overtaken < MOST_OVERTAKES:
                    continue
                break
            self._start(sequence)
            most = budget if sequence.turn_ends is None else min(budget, self._most_of_promoted(total))
            chunk = min(sequence.num_remaining_tokens, most)
            batch.append(Scheduled(sequence, chunk))
            budget -= chunk
            if budget <= 0 or len(self.running) == self._max_num_seqs:
                break

    def _by_preference(self) -> list[Sequence]:
        """The front of the queue in the order of admission: by priority, then sequences that may not be overtaken any
        more, then by cached tokens, then by arrival.
        """
        outlooks = [self._blocks.outlook(sequence) for sequence in self.waiting.window]
        if max(outlooks) <= 0:
            return self.waiting.window.copy()
        keys = [
            (sequence.rank[0], sequence.overtaken < MOST_OVERTAKES, -outlook, sequence.rank[1], sequence)
            for outlook, sequence in zip(outlooks, self.waiting.window, strict=True)
        ]
        return [key[-1] for key in sorted(keys, key=itemgetter(slice(4)))]

    def _start(self, sequence: Sequence) -> None:
        for passed in self.waiting.ahead_of(sequence):
            if passed.overtaken < MOST_OVERTAKES or not _awaits_adapter(passed):
                passed.overtaken += 1
        self.waiting.remove(sequence)
        self._run_by_rank(sequence)
        sequence.status = SequenceStatus.RUNNING
        self._table.enter(sequence)

    def _run_by_rank(self, sequence: Sequence) -> None:
        is_last = not self.running or self._last().rank < sequence.rank
        self.running[sequence.request_id] = sequence
        if not is_last:
            self._sort()

    def _sort(self) -> None:
        self.running = OrderedDict(sorted(self.running.items(), key=lambda item: item[1].rank))

    def _preempt(self, sequence: Sequence) -> None:
        """Preempt a running sequence. It keeps its tokens; keys and values that the prefix cache evicts meanwhile are
        computed again.
        """
        del self.running[sequence.request_id]
        assert not sequence.num_pending_tokens, "preempted before its token was known"
        sequence.num_dropped_tokens = sequence.num_computed_tokens
        self._withdraw(sequence)
        sequence.status = SequenceStatus.WAITING
        self.waiting.add(sequence, returns=True)
        self.num_preemptions += 1

    def _withdraw(self, sequence: Sequence) -> None:
        self._table.leave(sequence)
        self._blocks.free(sequence)


def _awaits_adapter(sequence: Sequence) -> bool:
    """True if a promoted sequence waits for its adapter: it holds up only sequences that need an adapter too."""
    return sequence.turn_ends is not None and sequence.lacks_adapter


def _decodes(sequence: Sequence) -> bool:
    """True if a running sequence has one token to compute and goes on after it, as far as is known."""
    return sequence.num_remaining_tokens == 1 and not sequence.ends_with_pending

"""Guesses a sequence's next tokens by running a smaller model ahead of it.

The smaller model has its own KV cache with as many blocks, and a token has the same slot in both caches. So the block
tables serve both, a slot for a draft exists in both, and memory never runs out on one side only. Knows tokens, slots
and the smaller model; not whether a guess is right.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from ..interface import Longs, ModelRunner
from ..sampling.sampler import Sampler
from ..scheduling.batch_table import BatchTable, TokenRange
from ..scheduling.sequence import Sequence


class DraftModel:
    """A Drafter (drafts.py).

    Guesses are sampled as the tokens themselves will be, with the same parameters, history and random numbers, so that
    they agree wherever the models do. A sequence that is new here is first computed up to its last token, within
    `max_tokens` per step of the engine; then its guesses begin.
    """

    def __init__(self, runner: ModelRunner, table: BatchTable, *, max_tokens: int) -> None:
        self._runner = runner
        self._table = table
        self._max_tokens = max_tokens
        self._sampler = Sampler()

    def draft(self, sequences: List[Sequence], counts: Longs) -> list[list[int]]:
        guesses: dict[str, list[int]] = {sequence.request_id: [] for sequence in sequences}
        most = {s.request_id: int(count) for s, count in zip(sequences, counts, strict=True) if self._takes(s, count)}
        ranges = self._first_ranges([sequence for sequence in sequences if sequence.request_id in most])
        depth = 0
        while ranges:
            ready = self._run(ranges, depth, guesses)
            ranges = [
                TokenRange(sequence, sequence.num_tokens + depth, sequence.num_tokens + depth + 1)
                for sequence in ready
                if len(guesses[sequence.request_id]) < most[sequence.request_id]
            ]
            depth += 1
        return [guesses[sequence.request_id] for sequence in sequences]

    def _takes(self, sequence: Sequence, count: int) -> bool:
        """True if all guesses but the last, which is not computed, are within this model's positions."""
        return sequence.num_tokens + int(count) - 1 <= self._runner.max_model_len

    def _first_ranges(self, sequences: List[Sequence]) -> list[TokenRange]:
        """The uncomputed tokens of each sequence, within the budget.

        Wrong drafts are computed again as the tokens that replaced them. The last token was sampled, so it was no
        draft.
        """
        ranges = []
        left = self._max_tokens
        for sequence in sequences:
            start = min(sequence.num_draft_computed_tokens, sequence.num_tokens - 1)
            end = min(sequence.num_tokens, start + left)
            if end > start:
                ranges.append(TokenRange(sequence, start, end))
                left -= end - start
        return ranges

    def _run(self, ranges: list[TokenRange], depth: int, guesses: dict[str, list[int]]) -> list[Sequence]:
        """Compute the ranges and add a guess for each sequence that got to its end; returns those."""
        output = self._runner.execute(self._table.pack_ranges(ranges))
        for each in ranges:
            each.sequence.num_draft_computed_tokens = each.end
        ready = [each.sequence for each in ranges if each.reaches_end]
        if ready:
            samples = self._sampler.sample(output.logits, self._table.sampling(ready, ahead=depth))
            for sequence, token_id in zip(ready, samples.token_ids, strict=True):
                guesses[sequence.request_id].append(token_id)
                self._table.add_drafts(sequence, guesses[sequence.request_id])
        return ready

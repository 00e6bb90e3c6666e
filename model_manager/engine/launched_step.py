"""A step that is launched on the device, until the host collects its results.

Knows turns and samples; not what becomes of the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .sampling.sampler import LaunchedSamples, Samples
from .scheduling.sequence import Sequence
from .speculation.drafts import Turn


class LaunchedStep:
    """The first turn is sampled when this is made; later turns, if there are drafts, when they are taken."""

    def __init__(
        self, turns: Iterator[Turn], sample: Callable[[Turn], LaunchedSamples], read: list[Sequence], *, reads: bool
    ) -> None:
        """`read` are sequences whose prompts end with this step without a token; `reads`: it reads off prompts."""
        self.read = read
        self.only_samples = not (read or reads)
        """True if the step gives only tokens."""
        self._first = next(turns, None)
        self._later = turns
        self._sample = sample
        self._samples = None if self._first is None else sample(self._first)

    @property
    def sequences(self) -> list[Sequence]:
        """Sequences that get a token."""
        return [] if self._first is None else self._first.sequences

    @property
    def token_ids(self) -> torch.Tensor | None:
        """[N] their tokens, on the device."""
        return None if self._samples is None else self._samples.token_ids

    def turns(self) -> Iterator[tuple[list[Sequence], Samples]]:
        """Sequences and their tokens, turn by turn; give them before taking the next turn."""
        if self._first is not None and self._samples is not None:
            yield self._first.sequences, self._samples.get()
            for turn in self._later:
                yield turn.sequences, self._sample(turn).get()

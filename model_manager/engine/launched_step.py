"""A step that the device was told to compute and to sample from, until the host takes in what came of it.

Knows turns and samples; not what becomes of the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .sampling.sampler import LaunchedSamples, Samples
from .scheduling.sequence import Sequence
from .speculation.drafts import Turn


class LaunchedStep:
    """Its first turn is being sampled from when it is made; the others, if there are drafts, as they are taken."""

    def __init__(
        self, turns: Iterator[Turn], sample: Callable[[Turn], LaunchedSamples], read: list[Sequence], *, reads: bool
    ) -> None:
        """`read` are the sequences whose prompts end with it without a token; `reads`: whether it reads off prompts."""
        self.read = read
        self.only_samples = not (read or reads)
        """Whether nothing but tokens comes of it."""
        self._first = next(turns, None)
        self._later = turns
        self._sample = sample
        self._samples = None if self._first is None else sample(self._first)

    @property
    def sequences(self) -> list[Sequence]:
        """Those that get a token."""
        return [] if self._first is None else self._first.sequences

    @property
    def token_ids(self) -> torch.Tensor | None:
        """[N] those tokens, on the device."""
        return None if self._samples is None else self._samples.token_ids

    def turns(self) -> Iterator[tuple[list[Sequence], Samples]]:
        """Whom to give a token each, and which; to be given before the next turn is taken."""
        if self._first is not None and self._samples is not None:
            yield self._first.sequences, self._samples.get()
            for turn in self._later:
                yield turn.sequences, self._sample(turn).get()

"""A step that is launched on the device, until the host collects its results.

Knows rounds of sampling and samples; not what becomes of the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from .sampling.sampler import LaunchedSamples, Samples
from .scheduling.sequence import Sequence
from .speculation.drafts import SamplingRound


class LaunchedStep:
    """The first round is sampled when this is made; later rounds, if there are drafts, when they are taken."""

    def __init__(
        self,
        rounds: Iterator[SamplingRound],
        sample: Callable[[SamplingRound], LaunchedSamples],
        read: list[Sequence],
        *,
        reads: bool,
    ) -> None:
        """`read` are sequences whose prompts end with this step without a token; `reads`: it reads off prompts."""
        self.read = read
        self.only_samples = not (read or reads)
        """True if the step gives only tokens."""
        self._first = next(rounds, None)
        self._later = rounds
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

    def rounds(self) -> Iterator[tuple[list[Sequence], Samples]]:
        """Sequences and their tokens, round by round; give them before taking the next round."""
        if self._first is not None and self._samples is not None:
            yield self._first.sequences, self._samples.get()
            for sampling_round in self._later:
                yield sampling_round.sequences, self._sample(sampling_round).get()

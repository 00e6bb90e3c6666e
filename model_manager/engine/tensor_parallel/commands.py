"""What rank 0 tells its peers over their pipes, once they have loaded: a step, final hidden states, or GiveBack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..interface import StepInput


@dataclass(frozen=True)
class GiveBack:
    """See ModelRunner.give_back."""

    first_block: int


Command: TypeAlias = StepInput | torch.Tensor | GiveBack
"""A tensor is what ModelRunner.logits takes, on the CPU."""

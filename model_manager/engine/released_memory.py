"""Gives the memory of a part of a tensor on a CPU back to the system."""

from __future__ import annotations

import torch

from .this_process import give_back_pages


def give_back_tail(tensor: torch.Tensor, first_byte: int) -> None:
    """Give back the memory of a contiguous tensor's bytes from this one on; what they held is lost."""
    assert tensor.is_contiguous()
    give_back_pages(tensor.data_ptr() + first_byte, tensor.nbytes - first_byte)

"""Copies of results from a device to the host, which goes on meanwhile. Knows tensors; not what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch


class HostCopy:
    """A copy of tensors of one device, queued in the device's order.

    It holds their values after all that was launched before it, whatever is launched later.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._copies = [_begin(tensor) for tensor in tensors]
        self._done = torch.cuda.Event() if any(tensor.is_cuda for tensor in tensors) else None
        if self._done is not None:
            self._done.record()

    def get(self) -> list[npt.NDArray[Any]]:
        """The tensors' values; waits for them, not for what was launched later."""
        if self._done is not None:
            self._done.synchronize()
        return [copy.numpy() for copy in self._copies]


def _begin(tensor: torch.Tensor) -> torch.Tensor:
    """Copy into pinned memory: the device can write only this while the host goes on."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to the device without waiting."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

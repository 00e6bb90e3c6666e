"""Random numbers that are a function of (seed, index) only.

So a request's draws do not depend on its company, and continue unchanged after preemption or in another engine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..interface import Longs

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: npt.NDArray[np.uint64], index: Longs) -> npt.NDArray[np.float64]:
    """[L] numbers in [0, 1), of 53 bits, one for each pair of [L] seed and index.

    The finalizer of SplitMix64 (Steele, Lea and Flood 2014) over the seed, then over that and the index.
    """
    mixed = _mix(_mix(seeds + _GOLDEN) + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))

"""How many runs a state machine gets."""

import os


def runs(count: int) -> int:
    """`count`, the same runs each time; a search (HYPOTHESIS_SEARCH=1) makes twenty times as many, others each time."""
    return 20 * count if "HYPOTHESIS_SEARCH" in os.environ else count

"""Classification: the rows of Classify. Beam reads its annotations as they stand, so they are no strings here."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional


class Classification(NamedTuple):
    """Which labels a document has."""

    id: str
    label: Optional[str]  # noqa: UP045 (Beam knows no `str | None`)
    """The likeliest of those that hold."""
    labels: Sequence[str]
    """Those that hold, the likeliest first; one, unless several may."""
    probabilities: Mapping[str, float]
    """Of every label: they sum to 1, unless several may hold."""
    columns: str
    """The source row's further columns, as JSON text."""
    model: str
    revision: str

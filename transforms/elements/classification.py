"""Classification: the rows of Classify. Beam reads its annotations as they stand, so they are no strings here."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional


class Classification(NamedTuple):
    """Which labels a document has."""

    id: str
    label: Optional[str]  # noqa: UP045 (Beam knows no `str | None`)
    """The likeliest of `labels`."""
    labels: Sequence[str]
    """The document's labels, the likeliest first; exactly one unless `multiple` was set."""
    probabilities: Mapping[str, float]
    """One probability for each label. They sum to 1 unless `multiple` was set."""
    columns: str
    """The source row's further columns, as JSON text."""
    model: str
    revision: str

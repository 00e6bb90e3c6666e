"""The record of a batch, as it lies on the disk and as OpenAI's clients read it. Knows no files and no jobs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

WINDOW = "24h"
WINDOW_SECONDS = 86400
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED = frozenset(("failed", "completed", "expired", "cancelled"))
LEFT_OUT = frozenset(("backend", "problems", "outcome"))
"""Fields that clients do not see as they are."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed; `line` of its file, from 1, where one line is at fault."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Counts(msgspec.Struct, frozen=True):
    """How many requests there are, and what they have come to."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at one moment; times in seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    model: str
    """Name of the model that its rows ask."""
    backend: str
    """The engine's name: another one's server leaves the batch alone."""
    created_at: int
    expires_at: int
    completion_window: str = WINDOW
    metadata: dict[str, str] | None = None
    status: BatchStatus = "validating"
    outcome: BatchStatus = "completed"
    """What it ends as, once it is decided: a server that takes over in the middle of the end knows it."""
    problems: list[Problem] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Counts()
    usage: dict[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in ENDED

    def now(self, status: BatchStatus, at: int, **changes: Any) -> Batch:
        """The batch as it enters a status; the time of the first entry stays."""
        name = f"{status}_at"  # there is none for the first status
        entered = {name: at} if getattr(self, name, 0) is None else {}
        return msgspec.structs.replace(self, status=status, **entered, **changes)

    def shown(self) -> dict[str, Any]:
        """The record as OpenAI's clients read it. Files are named once they exist."""
        shown = {name: value for name, value in msgspec.to_builtins(self).items() if name not in LEFT_OUT}
        errors = {"object": "list", "data": msgspec.to_builtins(self.problems)} if self.problems else None
        files = {} if self.has_ended else {"output_file_id": None, "error_file_id": None}
        return {**shown, "object": "batch", "errors": errors, **files}

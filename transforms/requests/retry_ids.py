"""Request ids that a retried bundle, or a job that is resumed, computes again: it attaches to requests that run or are
done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from millrace.model_manager.wire.sampling import SamplingParams

from ..elements.completions import Prompt

_REMEMBERED = 100_000


class RequestIds:
    """Ids of one bundle: a hash of job, prompt, parameters and task, and the number of equal prompts before it.

    The last `remembered` prompts are compared. Equal prompts that lie farther apart get the same id, and so the same
    answer.
    """

    def __init__(self, job: str, remembered: int = _REMEMBERED) -> None:
        self._job = job
        self._remembered = remembered
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def of(self, prompt: Prompt, params: SamplingParams, task: Sequence[Any] = ()) -> str:
        """The id of this occurrence of the prompt; `task` is `Task.id_parts`, empty for a plain completion."""
        digest = prompt.digest(self._job, params, task)[:16]
        occurrence = self._seen.pop(digest, 0)
        self._seen[digest] = occurrence + 1
        if len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        return f"{digest.hex()}-{occurrence}"

"""CTranslate2's generator, on a checkpoint that its own converter has converted."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.workload import Item

MAX_BATCH_SIZE = 32


class CTranslate2:
    """One `generate_batch` call; the callback ends each request at its own length, and the batch shrinks by it.

    CTranslate2 has no continuous batching: it sorts the prompts by length and takes `max_batch_size` at a time.
    """

    def load(self, folder: Path, dtype: str) -> None:
        import ctranslate2

        self._tokens: list[str] = json.loads((folder / "vocabulary.json").read_text())
        self._generator = ctranslate2.Generator(
            str(folder),
            compute_type="int8_float32" if dtype == "int8" else dtype,
            intra_threads=len(os.sched_getaffinity(0)),  # as the back end has it; by default 4 at most
        )

    def run(self, items: list[Item]) -> list[int]:
        counts = [0] * len(items)

        def ends(step: object) -> bool:
            index: int = step.batch_id  # type: ignore[attr-defined]
            counts[index] += 1
            return counts[index] >= items[index].num_output

        longest = max(item.num_output for item in items)
        results = self._generator.generate_batch(
            [[self._tokens[token] for token in item.prompt_token_ids] for item in items],
            max_batch_size=MAX_BATCH_SIZE,
            max_length=longest,
            min_length=longest,
            end_token=[],
            include_prompt_in_result=False,
            callback=ends,
        )
        return [len(result.sequences_ids[0]) for result in results]

"""No engine: what millrace's matrix products alone would allow, if all else in its steps took no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sides.millrace import MillraceEngine
from benchmarks.workload import Item


class GemmBound:
    """Runs the engine once, noting the rows of each step, then only the linear layers over as many rows.

    Every layer of the decoder takes all the step's rows, the output head those whose logits were wanted.
    """

    def load(self, folder: Path, dtype: str) -> None:
        self._engine = MillraceEngine()
        self._engine.load(folder, dtype)
        model = self._engine.runner._model
        self._head = model.lm_head
        self._linears = [module for module in model.modules() if _is_linear(module) and module is not self._head]
        self._dtype = model.get_input_embeddings().weight.dtype
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def prepare(self, items: list[Item]) -> None:
        """Note what steps the engine makes of these items."""
        if len(items) not in self._steps:
            self._steps[len(items)] = self._recorded(items)

    def run(self, items: list[Item]) -> list[int]:
        import torch

        inputs: dict[tuple[int, int], torch.Tensor] = {}

        def product(linear: Any, rows: int) -> None:
            key = rows, linear.in_features
            if key not in inputs:
                inputs[key] = torch.randn(key, dtype=self._dtype)
            linear(inputs[key])  # layers that share a product know it by the very tensor

        with torch.inference_mode():
            for num_tokens, num_logits in self._steps[len(items)]:
                for linear in self._linears:
                    product(linear, num_tokens)
                product(self._head, num_logits)
        return [item.num_output for item in items]

    def _recorded(self, items: list[Item]) -> list[tuple[int, int]]:
        steps: list[tuple[int, int]] = []
        runner = self._engine.runner
        execute = runner.execute

        def recording(step: Any) -> Any:
            steps.append((len(step.token_ids), len(step.logits_rows)))
            return execute(step)

        runner.execute = recording
        try:
            self._engine.run(items)
        finally:
            runner.execute = execute
        return steps


def _is_linear(module: Any) -> bool:
    return hasattr(module, "in_features") and not any(hasattr(child, "in_features") for child in module.children())

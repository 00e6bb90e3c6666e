"""No engine: what millrace's matrix products alone would allow, if all else in its steps took no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sides.millrace import MillraceEngine
from benchmarks.workload import Item


class GemmBound:
    """Runs the engine once, noting the rows of each step, then only the linear layers over as many rows.

    Every layer of the decoder takes all the step's rows; the output head, and compiled the last layer's products after
    attention, those whose logits were wanted.
    """

    def load(self, folder: Path, dtype: str) -> None:
        from millrace.model_manager.engine.cpu.compiled_runner import CompiledRunner

        self._engine = MillraceEngine()
        self._engine.load(folder, dtype)
        runner = self._engine.runner
        self._products: Any = CompiledProducts(runner) if isinstance(runner, CompiledRunner) else TorchProducts(runner)
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def prepare(self, items: list[Item]) -> None:
        """Note what steps the engine makes of these items."""
        if len(items) not in self._steps:
            self._steps[len(items)] = self._recorded(items)

    def run(self, items: list[Item]) -> list[int]:
        for num_tokens, num_logits in self._steps[len(items)]:
            self._products.run(num_tokens, num_logits)
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


class CompiledProducts:
    """The calls of a compiled step that are products, over the buffers that they always use."""

    def __init__(self, runner: Any) -> None:
        emitters = (runner._body, runner._last, runner._head)
        self._body, self._last, self._head = (_only_products(emitter) for emitter in emitters)
        self._logits = runner._buffers.logits.tensor.new_empty((runner._max_tokens, runner._head_columns))

    def run(self, num_tokens: int, num_logits: int) -> None:
        """All layers' products, then the head's."""
        from millrace.model_manager.engine.cpu.records import Linear

        parts = ((self._body, num_tokens), (self._last, num_logits), (self._head, num_logits))
        for (program, records), rows in parts:
            for record in records:
                record[Linear.TASKS] = record[Linear.THREADS] = 0
                record[Linear.ROWS] = rows
            if program is self._head[0]:
                records[0][Linear.OUTPUT] = self._logits.data_ptr()
                records[0][Linear.OUTPUT_STRIDE] = self._logits.stride(0) * self._logits.itemsize
            program.run()


def _only_products(emitter: Any) -> tuple[Any, list[Any]]:
    """A program of the emitter's products, and their records."""
    from millrace.model_manager.engine.cpu.step_program import Program

    program = Program(emitter._team)
    products = {record.ctypes.data for record in emitter._products}
    for kernel, address in emitter._program._calls:
        if address in products:
            program.add_foreign(kernel, address)
    return program, emitter._products


class TorchProducts:
    """The linear modules of a transformers model."""

    def __init__(self, runner: Any) -> None:
        model = runner._model
        self._head = model.lm_head
        self._linears = [module for module in model.modules() if _is_linear(module) and module is not self._head]
        self._dtype = model.get_input_embeddings().weight.dtype

    def run(self, num_tokens: int, num_logits: int) -> None:
        """All layers' products, then the head's."""
        import torch

        inputs: dict[tuple[int, int], torch.Tensor] = {}  # layers that share a product know it by the very tensor
        with torch.inference_mode():
            for linear, rows in [*((linear, num_tokens) for linear in self._linears), (self._head, num_logits)]:
                key = rows, linear.in_features
                if key not in inputs:
                    inputs[key] = torch.randn(key, dtype=self._dtype)
                linear(inputs[key])


def _is_linear(module: Any) -> bool:
    return hasattr(module, "in_features") and not any(hasattr(child, "in_features") for child in module.children())

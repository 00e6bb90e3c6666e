"""Writes a step's program: one call for each norm, product, rotation and rounding, over buffers that stay in place.

Knows buffers and matrices; not what a model consists of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from ..interface import Longs
from ..paged_attention import CacheShape
from . import step_kernels
from .matrix_ops import LANES, PANEL, Epilogue, Format, Unit
from .packed_matrix import PackedMatrix
from .records import Linear, Normalize, Quantize, Rotate
from .row_ops import Norm
from .step_kernels import SPARE_ROWS, SUMS_BYTES
from .step_program import Program, step_kernel
from .team import Kernel, Team
from .tile_ops import tile_shapes
from .units import unit_of

_FORMATS = {torch.uint8: Format.INT8, torch.bfloat16: Format.BFLOAT16, torch.float32: Format.FLOAT32}
_GATED = (Epilogue.SWIGLU, Epilogue.GEGLU_TANH)
_LINE = 64
_ROWS = Linear.ROWS
"""All records have it at the same place."""


@dataclass(frozen=True)
class NormWeights:
    """A normalisation's float32 weight and bias [dim]."""

    kind: Norm
    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float


class Rows:
    """A buffer of rows, some to spare at the end, which kernels read but do not use.

    Unless `exact`, rows are padded to whole panels, which products write as a whole. uint8 rows have a scale each.
    """

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, *, exact: bool = False, memory: torch.Tensor | None = None
    ) -> None:
        """`memory`: bytes to lie in, with others that are not in use at the same time."""
        self.stride = _stride(columns, exact=exact) * dtype.itemsize
        """Bytes from one row to the next."""
        rows += SPARE_ROWS
        if memory is None:
            memory = torch.empty(
                rows * self.stride, dtype=torch.uint8
            )  # not zeroed: pages that no step needs stay untouched
        self.tensor = memory[: rows * self.stride].view(dtype).view(rows, -1)
        self.scales = torch.zeros(rows if dtype == torch.uint8 else 0)

    @staticmethod
    def memory(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """A buffer for `rows` rows of at most `columns` columns."""
        return torch.empty((rows + SPARE_ROWS) * _stride(columns, exact=False) * dtype.itemsize, dtype=torch.uint8)

    @property
    def address(self) -> int:
        """Address of the first row."""
        return self.tensor.data_ptr()


def _stride(columns: int, *, exact: bool) -> int:
    return columns if exact else -(-columns // PANEL) * PANEL


class Rotation:
    """Cosines and sines of a step's rows, [rows, half] float32; `half` is 0 where a model rotates nothing."""

    def __init__(self, rows: int, half: int) -> None:
        self.half = half
        self.cos, self.sin = torch.zeros(rows, half), torch.zeros(rows, half)


class Emitter:
    """Appends calls to a program and runs it; keeps alive what they refer to."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._program = Program(team)
        self._records: list[Longs] = []
        self._products: list[Longs] = []
        """The records of products among them, in order."""
        self._kept: list[Any] = []
        self._shapes = tile_shapes()
        self._sums = -(-self._address(torch.zeros(team.size * SUMS_BYTES + _LINE, dtype=torch.uint8)) // _LINE) * _LINE

    def run(self, rows: int) -> None:
        """Run the program for the first `rows` rows of each buffer."""
        for record in self._records:
            record[_ROWS] = rows
        self._program.run()

    def normalize(self, source: Rows, norm: NormWeights, target: Rows) -> Longs:
        """`target` = the norm of `source`, in the target's format; the record's ROW_INDEX may name other rows."""
        dim, fmt = len(norm.weight), _FORMATS[target.tensor.dtype]
        self._kept += (source, target)
        return self._add(
            step_kernel(step_kernels.normalize, norm.kind, fmt),
            {
                Normalize.INPUT: source.address,
                Normalize.INPUT_STRIDE: source.stride,
                Normalize.DIM: dim,
                Normalize.WEIGHT: self._address(norm.weight),
                Normalize.BIAS: self._address(norm.bias),
                Normalize.EPSILON: self._address(torch.tensor([norm.epsilon])),
                Normalize.OUTPUT: target.address,
                Normalize.OUTPUT_STRIDE: target.stride,
                Normalize.OUTPUT_SCALES: target.scales.data_ptr(),
                Normalize.SCRATCH: self._address(torch.zeros(self._team.size * dim)),
            },
        )

    def multiply(self, source: Rows, matrix: PackedMatrix, target: Rows, epilogue: Epilogue) -> Longs:
        """`target` = what `epilogue` makes of `source` times `matrix`."""
        assert _FORMATS[source.tensor.dtype] == matrix.fmt
        self._kept += (source, matrix, target)
        gated, unit = epilogue in _GATED, unit_of(matrix.fmt, matrix.steps)
        assert unit is not None
        if self._products:
            last = self._products[-1]
            last[Linear.NEXT_WEIGHT] = matrix.data.data_ptr()
            last[Linear.NEXT_STEPS] = matrix.steps
        product = self._add(
            step_kernel(step_kernels.linear, matrix.fmt, epilogue, target.tensor.itemsize, unit),
            {
                Linear.INPUT: source.address,
                Linear.INPUT_STRIDE: source.stride,
                Linear.INPUT_SCALES: source.scales.data_ptr(),
                Linear.WEIGHT: matrix.data.data_ptr(),
                Linear.STEPS: matrix.steps,
                Linear.PANELS: matrix.panels // (2 if gated else 1),
                Linear.SCALES: matrix.scales.data_ptr(),
                Linear.OFFSETS: matrix.offsets.data_ptr(),
                Linear.BIAS: matrix.bias.data_ptr(),
                Linear.OUTPUT: target.address,
                Linear.OUTPUT_STRIDE: target.stride,
                Linear.SUMS: self._sums,
                Linear.GATED: int(gated),
                Linear.TEAM: self._team.size,
                Linear.TILE_SHAPES: self._shapes.ctypes.data if unit == Unit.TILES else 0,
            },
        )
        self._products.append(product)
        return product

    def quantize(self, source: Rows, dim: int, target: Rows | None) -> Rows:
        """The first `dim` elements of each row as the products take them: `source` itself, or `target`, in int8."""
        if target is None:
            return source
        self._kept += (source, target)
        self._add(
            step_kernel(step_kernels.quantize, source.tensor.itemsize),
            {
                Quantize.INPUT: source.address,
                Quantize.INPUT_STRIDE: source.stride,
                Quantize.DIM: dim,
                Quantize.OUTPUT: target.address,
                Quantize.OUTPUT_STRIDE: target.stride,
                Quantize.OUTPUT_SCALES: target.scales.data_ptr(),
            },
        )
        return target

    def rotate(
        self, heads: Rows, norms: tuple[NormWeights, NormWeights] | None, shape: CacheShape, angles: Rotation
    ) -> None:
        """Normalise (if `norms`) and rotate (by `angles`) query and key heads in place."""
        if norms is None and not angles.half:
            return
        self._kept += (heads, angles)
        lanes = LANES if angles.half % LANES == 0 else LANES // 2
        self._add(
            step_kernel(step_kernels.rotate, lanes, heads.tensor.itemsize),
            {
                Rotate.INPUT: heads.address,
                Rotate.INPUT_STRIDE: heads.stride,
                Rotate.HEADS: shape.num_heads,
                Rotate.KV_HEADS: shape.num_kv_heads,
                Rotate.DIM: shape.head_dim,
                Rotate.HALF: angles.half,
                Rotate.COS: angles.cos.data_ptr(),
                Rotate.SIN: angles.sin.data_ptr(),
                Rotate.ANGLE_STRIDE: 4 * angles.half,
                Rotate.QUERY_NORM: self._address(norms[0].weight) if norms else 0,
                Rotate.KEY_NORM: self._address(norms[1].weight) if norms else 0,
                Rotate.EPSILON: self._address(torch.tensor([norms[0].epsilon])) if norms else 0,
            },
        )

    def attend(self, calls: list[tuple[int, int]]) -> None:
        """Attention, by kernels and records of its own."""
        for kernel, record in calls:
            self._program.add_foreign(kernel, record)

    def _add(self, kernel: Kernel, fields: dict[IntEnum, int]) -> Longs:
        record = self._program.add(kernel, fields)
        self._records.append(record)
        return record

    def _address(self, tensor: torch.Tensor) -> int:
        assert tensor.is_contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()

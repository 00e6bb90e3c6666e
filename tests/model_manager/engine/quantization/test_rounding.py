"""Rounding against its own definition: how far off a value may be."""

from __future__ import annotations

import pytest
import torch

from millrace.model_manager.engine.quantization.rounding import RoundedGroups, round_groups, round_rows


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_in_int8_a_value_is_off_by_half_a_step_of_its_row() -> None:
    rows = _random(50, 3, 32) * torch.logspace(-20, 20, 50)[:, None, None]
    rounded = round_rows(rows, torch.int8)
    assert (rounded.steps.abs().amax(-1) == 127).all()
    assert ((rounded.values() - rows).abs() <= rows.abs().amax(-1, keepdim=True) / 127 * 0.5001).all()


def test_in_fp8_a_value_is_off_by_a_sixteenth_of_itself() -> None:
    rows = _random(50, 3, 32) * torch.logspace(-20, 20, 50)[:, None, None]
    size = rows.abs().maximum(rows.abs().amax(-1, keepdim=True) / 448 / 64)  # below 2 ** -6 the steps are even
    assert ((round_rows(rows, torch.float8_e4m3fn).values() - rows).abs() <= size / 16 * 1.0001).all()


@pytest.mark.parametrize("to", [torch.int8, torch.float8_e4m3fn])
def test_zeros_stay_zeros_and_what_is_not_finite_is_not_lost(to: torch.dtype) -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, torch.inf], [torch.nan, 1.0], [1.0, 2.0]])
    values = round_rows(rows, to).values()
    assert values[0].tolist() == [0.0, 0.0]
    assert values[1:3].isnan().all()
    assert values[3].isfinite().all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_in_int4_the_error_is_no_more_than_that_of_even_steps_from_lowest_to_highest(group: int) -> None:
    matrix = (_random(48, 256) + 0.3) * torch.logspace(-3, 3, 48)[:, None]
    rounded = round_groups(matrix, group)
    assert rounded.group == group
    grouped = matrix.reshape(48, -1, group)
    low = grouped.amin(-1, keepdim=True)
    step = (grouped.amax(-1, keepdim=True) - low) / 15
    plain = ((grouped - low) / step).round() * step + low
    error = (rounded.values() - matrix).norm(dim=1)
    assert (error <= 1.02 * (plain.flatten(1) - matrix).norm(dim=1)).all()
    assert error.sum() < 0.97 * (plain.flatten(1) - matrix).norm(dim=1).sum()


def test_a_group_of_one_value_keeps_it() -> None:
    matrix = torch.tensor([[0.0] * 32 + [0.5] * 32 + [-3.0] * 32])
    torch.testing.assert_close(round_groups(matrix, 32).values(), matrix, atol=1e-37, rtol=0.0)


def test_sixteen_even_steps_are_kept_as_they_are() -> None:
    steps = torch.arange(16).repeat(4).reshape(1, 64).to(torch.uint8)
    stored = RoundedGroups(steps, torch.tensor([[0.5, 0.25]]), torch.tensor([[0.0, 2.0]]))
    again = round_groups(stored.values(), 32)
    assert torch.equal(again.steps, steps)
    assert torch.equal(again.values(), stored.values())

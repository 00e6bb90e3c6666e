"""A peer computes what rank 0 sends it, in order, until the pipe ends."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import torch

from millrace.model_manager.engine.interface import StepInput
from millrace.model_manager.engine.loading.ranks import send
from millrace.model_manager.engine.tensor_parallel.commands import Command, GiveBack
from millrace.model_manager.engine.tensor_parallel.peer import follow


def test_a_peer_executes_steps_gives_blocks_back_and_computes_logits_in_order() -> None:
    longs, ints = np.zeros(1, np.int64), np.zeros(1, np.int32)
    step = StepInput(longs, longs, longs, ints, ints, ints.reshape(1, 1), longs)
    hidden, pipe = torch.ones(2, 3), io.BytesIO()
    commands: list[Command] = [step, GiveBack(7), hidden, step]
    for command in commands:
        send(pipe, command)
    pipe.seek(0)
    runner: Any = Mock()
    follow(runner, pipe, torch.device("cpu"))
    names = [name for name, _, _ in runner.mock_calls]
    assert names == ["execute", "give_back", "logits", "execute"]
    assert runner.mock_calls[1] == call.give_back(7)
    (given,) = runner.logits.call_args.args
    assert torch.equal(given, hidden)

"""A peer of a tensor-parallel engine: `python -m millrace.model_manager.engine.tensor_parallel.peer`.

The engine's process starts it, and sends over a pipe (standard input) what to load and then every step; it ends when
the pipe closes. Loads its part of the model and computes; decides nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import IO

import torch

from ..interface import ModelRunner, StepInput
from ..loading.device import choose_device
from ..loading.model_loader import load_model
from ..loading.ranks import join, receive
from ..this_process import die_with_parent
from .commands import Command, GiveBack


def main() -> int:
    """Serve until rank 0 is gone; returns the exit status."""
    parser = argparse.ArgumentParser(description="A peer of a tensor-parallel engine; the engine starts it.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--model", default="", help="shown by ps; what to load is told over the pipe")
    options = parser.parse_args()
    die_with_parent(b"millrace-peer")
    logging.basicConfig(
        format=f"%(asctime)s peer[{os.getpid()}] %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr
    )
    pipe = sys.stdin.buffer
    try:
        config, folder, meeting = receive(pipe)
    except EOFError:
        return 0
    rank = join(meeting, options.rank, config.tensor_parallel, choose_device(config.device))
    follow(load_model(config, folder, rank).runner, pipe, rank.device)
    return 0


def follow(own: ModelRunner, pipe: IO[bytes], device: torch.device) -> None:
    """Compute what rank 0 computes until it is gone."""
    while True:
        try:
            command: Command = receive(pipe)
        except EOFError:
            return
        match command:
            case StepInput():
                own.execute(command)
            case GiveBack(first_block):
                own.give_back(first_block)
            case hidden:
                own.logits(hidden.to(device))


if __name__ == "__main__":
    os._exit(main())  # without the group's goodbyes: rank 0 is gone

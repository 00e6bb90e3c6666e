"""Rank 0 of a tensor-parallel engine: starts its peers, and makes them compute every step with it.

Knows processes and steps; not what a model is.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...wire.config import ModelConfig
from ..interface import ModelRunner, StepInput, StepOutput
from ..loading.checkpoint import read_checkpoint
from ..loading.device import choose_device
from ..loading.model_loader import LoadedModel, load_model
from ..loading.ranks import check_divisible, join, send
from .commands import Command, GiveBack

log = logging.getLogger(__name__)

PEER_COMMAND = (sys.executable, "-P", "-m", "millrace.model_manager.engine.tensor_parallel.peer")
PEER_LOST = 4
"""Exit status of an engine when one of its peers has ended."""
_OWN_ERROR_WITHIN = 5.0
"""Seconds for rank 0 to fail by itself and say why, when a peer fails to load: mostly all fail alike."""


def load_divided(config: ModelConfig, folder: Path) -> LoadedModel:
    """Load the checkpoint in `folder` in as many processes as `config` asks for; raises as load_model does."""
    checkpoint = read_checkpoint(folder)
    check_divisible(checkpoint.transformers_config, config, is_quantized=checkpoint.quantization is not None)
    peers = Peers(config, folder)
    rank = join(peers.meeting, 0, config.tensor_parallel, choose_device(config.device))
    loaded = load_model(config, folder, rank)
    peers.loaded()
    return replace(loaded, runner=LeadingRunner(loaded.runner, peers))


class Peers:
    """The processes of ranks 1 and up; they end with this one, and this one with any of them."""

    def __init__(self, config: ModelConfig, folder: Path) -> None:
        """Start them. Only from the main thread: the kernel ends them together with the thread that started them."""
        self.world = config.tensor_parallel
        self._meeting = tempfile.TemporaryDirectory(prefix="millrace-group-")
        self.meeting = Path(self._meeting.name) / "ranks"
        self._loading = True
        self._processes = [_spawn(config, rank) for rank in range(1, config.tensor_parallel)]
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()
        for process in self._processes:
            _tell(process, (config, folder, self.meeting))

    def loaded(self) -> None:
        """Delete the meeting place: all have loaded."""
        self._loading = False
        self._meeting.cleanup()

    def send(self, command: Command) -> None:
        """Send a command to each of them."""
        for process in self._processes:
            _tell(process, command)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if self._loading:
            time.sleep(_OWN_ERROR_WITHIN)
        log.error("ends: its process of rank %d ended with status %d", rank, status)
        os._exit(PEER_LOST)  # the main thread may wait in a collective for the one that is gone


def _tell(process: subprocess.Popen[bytes], what: object) -> None:
    assert process.stdin is not None
    send(process.stdin, what)


def _spawn(config: ModelConfig, rank: int) -> subprocess.Popen[bytes]:
    command = [*PEER_COMMAND, "--rank", str(rank), "--model", config.model]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


class LeadingRunner:
    """The ModelRunner of rank 0: what it computes, its peers compute with it."""

    has_graphs = False
    runs_ahead = False  # its peers, which sample nothing, would not know the tokens

    def __init__(self, own: ModelRunner, peers: Peers) -> None:
        self._own = own
        self._peers = peers
        self.vocab_size = own.vocab_size
        self.max_model_len = own.max_model_len
        self.num_blocks = own.num_blocks
        self.block_size = own.block_size
        self.eos_token_ids = own.eos_token_ids
        self.bytes_per_block = own.bytes_per_block * peers.world

    def execute(self, step: StepInput) -> StepOutput:
        """Compute the batch, writing keys and values to `slots`."""
        self._peers.send(step)
        return self._own.execute(step)

    def logits(self, hidden: Any) -> Any:
        """The output head alone: float32 logits [N, vocab_size] of final hidden states [N, hidden_size]."""
        self._peers.send(hidden.cpu())
        return self._own.logits(hidden)

    def give_back(self, first_block: int) -> None:
        """Give the memory of this block and all after it back to the system, in all processes."""
        self._peers.send(GiveBack(first_block))
        self._own.give_back(first_block)

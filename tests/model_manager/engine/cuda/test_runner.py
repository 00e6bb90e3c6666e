"""A model on what there is for a GPU, as far as a CPU can run it: what is checked stands in cuda_checks.py."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_model_on_what_gpus_run_generates_what_it_generates_on_plain_torch() -> None:
    command = [sys.executable, "-m", "tests.model_manager.engine.cuda_checks"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

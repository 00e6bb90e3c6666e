"""A process with a client of its own, as a Beam worker is: submits prompts to the stand-in and prints what came."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.sampling import SamplingParams
from tests.model_manager.manager.machine import MANAGER, SETTINGS
from tests.model_manager.manager.stand_in_engine import ANSWER


def main(runtime: str, model: str, requests: str, tokens: str, prefix: str) -> None:
    """See Machine.worker."""
    config = ModelConfig(model=model, backend="fake", max_num_seqs=8)
    with EngineClient.open(config, manager=SETTINGS, runtime=Path(runtime), manager_command=MANAGER) as client:
        print("ready", flush=True)
        params = SamplingParams(max_tokens=int(tokens))
        prompts = {f"{prefix}{index}": [ANSWER, int(tokens), index % 60] for index in range(int(requests))}
        futures = {name: client.submit(prompt, params, request_id=name) for name, prompt in prompts.items()}
        print(json.dumps({name: future.result().token_ids for name, future in futures.items()}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

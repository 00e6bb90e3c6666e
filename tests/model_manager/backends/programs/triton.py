"""NVIDIA's Triton with a model `m` that counts words: `python triton.py HTTP_PORT GRPC_PORT FOLDER`.

The answer to a prompt is the prompt's own words, as many as `max_tokens` says, up to a stop word. A prompt that begins
with "held" leaves FOLDER/held and waits until FOLDER/release is there; one that begins with "slow" takes a while.
`temperature` and `seed` stand in the answer.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

INPUTS = [
    Tensor(name="text_input", dtype=np.bytes_, shape=(1,)),
    Tensor(name="max_tokens", dtype=np.int32, shape=(1,), optional=True),
    Tensor(name="temperature", dtype=np.float32, shape=(1,), optional=True),
    Tensor(name="random_seed", dtype=np.uint64, shape=(1,), optional=True),
    Tensor(name="stop_words", dtype=np.bytes_, shape=(1,), optional=True),
]


def main(http_port: int, grpc_port: int, folder: Path) -> None:
    """Serve until it is ended."""

    def infer(requests: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"text_output": np.array([[answer(request, folder).encode()]])} for request in requests]

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        allow_metrics=False,
    )
    with Triton(config=config, workspace=folder / f"workspace-{os.getpid()}") as triton:
        triton.bind(
            model_name="m",
            infer_func=infer,
            inputs=INPUTS,
            outputs=[Tensor(name="text_output", dtype=np.bytes_, shape=(1,))],
            config=ModelConfig(max_batch_size=64),
        )
        triton.serve()


def answer(request: Any, folder: Path) -> str:
    """What the model answers to one request."""
    values = {name: array.flatten()[0] for name, array in request.items()}
    prompt = values["text_input"].decode()
    if prompt.startswith("held"):
        (folder / "held").touch()
        while not (folder / "release").exists():
            time.sleep(0.02)
    time.sleep(0.03 * prompt.startswith("slow"))
    words = prompt.split()[: int(values["max_tokens"])]
    if "random_seed" in values:
        words.append(f"seed={values['random_seed']}")
    if values["temperature"]:
        words.append(f"temperature={values['temperature']:g}")
    text = " ".join(words)
    if "stop_words" in values:
        before, stop, _ = text.partition(values["stop_words"].decode())
        text = before + stop
    return text


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

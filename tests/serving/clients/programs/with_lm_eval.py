"""lm-eval's `local-completions` against the server, and its own `hf` back end on the same files: log-likelihoods agree.

Takes the URL, the model's name, its folder, and a folder to write tasks to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

CAPITALS = {"Mexico": "Mexico City", "Italy": "Rome", "France": "Paris", "Japan": "Tokyo", "Peru": "Lima"}
TASKS: dict[str, dict[str, Any]] = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}],
    },
    "read": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{choices[label]}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{choices[label]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "temperature": 0.0, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}
_NEAR = 2e-3
"""Largest difference of two log-likelihoods in float32, summed over an answer's tokens."""


def main(url: str, model: str, weights: str, folder: str) -> None:
    """Run the tasks with both, and compare each sample's answers."""
    write_tasks(Path(folder))
    served = {"model": model, "base_url": f"{url}/completions", "tokenizer": weights, "num_concurrent": 4}
    ours = samples("local-completions", served | {"tokenized_requests": True, "max_retries": 1}, folder)
    theirs = samples("hf", {"pretrained": weights, "dtype": "float32", "device": "cpu"}, folder)
    for name in TASKS:
        assert len(ours[name]) == len(CAPITALS)
        for one, other in zip(ours[name], theirs[name], strict=True):
            assert alike(one["filtered_resps"], other["filtered_resps"]), (name, one, other)


def write_tasks(folder: Path) -> None:
    """The tasks, and the file of their questions."""
    capitals = [*CAPITALS.values()]
    rows = [
        {"question": f"The capital of {country} is", "choices": [f" {each}" for each in capitals], "label": label}
        for label, country in enumerate(CAPITALS)
    ]
    data = folder / "capitals.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common: dict[str, Any] = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
    }
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **common, **task}))  # JSON is YAML


def samples(model: str, arguments: dict[str, Any], folder: str) -> dict[str, list[dict[str, Any]]]:
    """What a model said, by task."""
    manager = TaskManager(include_path=folder, include_defaults=False)
    found = simple_evaluate(
        model, model_args=arguments, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    return {name: sorted(each, key=lambda sample: sample["doc_id"]) for name, each in found["samples"].items()}


def alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same, numbers nearly."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(abs(one - other) < _NEAR if isinstance(one, float) else one == other)


if __name__ == "__main__":
    main(*sys.argv[1:])

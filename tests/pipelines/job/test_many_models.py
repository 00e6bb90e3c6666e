"""A whole job whose rows name their models, in memory for one of them, with a real manager and its engines."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apache_beam as beam
import pytest

from millrace import Generate, ManagerConfig, Prompt, SamplingParams
from millrace.model_manager.store import resolve
from millrace.model_manager.store.memory import memory_need
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ModelConfig
from millrace.pipelines.commands.job_commands import generate as main
from tests.json_lines import rows_of, write_rows

ROWS = 90


@pytest.mark.usefixtures("runtime")
def test_every_row_is_answered_by_the_model_that_it_names(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        shutil.copytree(resolve(EMBEDDED_MODEL), folder)
    named = {f"r{number}": str(folders[number % 3]) for number in range(ROWS)}
    rows = [{"id": name, "prompt": f"question {name}", "model": model} for name, model in named.items()]
    rows.append({"id": "none", "prompt": "question", "model": "elsewhere"})
    random.Random(3).shuffle(rows)
    write_rows(tmp_path / "rows.jsonl", rows)
    need = memory_need(ModelConfig(model=str(folders[0]), backend="fake"), str(folders[0])).least
    places = ["--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out" / "c")]
    memory = ["--memory_gib", str(1.5 * need / 2**30), "--linger=0.5", "--max_tokens=5", "--backend=fake"]
    assert main([*places, "--models", ",".join(map(str, folders)), *memory]) == 0
    answered = rows_of(tmp_path / "out", "c-*.jsonl")
    assert {row["id"]: row["model"] for row in answered} == named
    (letter,) = rows_of(tmp_path / "out", "c.dead_letters*.jsonl")
    assert (letter["id"], letter["error"]) == ("none", "InvalidRequest")


@pytest.mark.usefixtures("runtime")
def test_a_job_fails_whose_pinned_model_leaves_no_room_for_another_one_of_it(tmp_path: Path) -> None:
    """Else the other model's rows would wait for the end of their own job."""
    folders = [str(shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / name)) for name in ("free", "pinned")]
    first, pinned = (ModelConfig(model=folder, backend="fake", pinned=folder == folders[1]) for folder in folders)
    need = memory_need(first, folders[0]).least
    manager = ManagerConfig(memory_gib=1.5 * need / 2**30, linger=0.5)
    named = [folders[number == 20] for number in range(40)]
    prompts = [Prompt(text=f"{number}", columns={"model": model}) for number, model in enumerate(named)]
    with pytest.raises(Exception, match=r"beside pinned .*/pinned: set memory_gib"), beam.Pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create(prompts, reshuffle=False)
            | Generate(first, SamplingParams(max_tokens=5), models=[pinned], manager=manager)
        )

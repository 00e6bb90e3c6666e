"""Rows that name LoRA adapters, with real processes and the embedded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.pipelines.commands.job_commands import generate as main
from tests.json_lines import rows_of
from tests.model_manager.engine import adapters_made_here, random_checkpoints

_TEXT = "The capital of Peru"


def _run(folder: Path, rows: list[dict[str, Any]], *flags: str) -> int:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ["--input", str(folder / "rows.jsonl"), "--output", str(folder / "out/c"), "--overwrite"]
    return main([*files, "--max_tokens", "8", "--min_tokens", "8", "--quiet", "--linger", "0.5", *flags])


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_each_row_is_answered_by_its_own_adapter(tmp_path: Path) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(resolve(EMBEDDED_MODEL), dtype=torch.float32)
    made = {name: adapters_made_here.write(tmp_path / name, model, seed=ord(name), size=0.2) for name in "ab"}
    rows = [{"id": f"{name}{n}", "prompt": _TEXT, "adapter": made[name].name}
            for n in range(2) for name in made]  # fmt: skip
    rows += [{"id": "0", "prompt": _TEXT}, {"id": "1", "prompt": _TEXT, "adapter": "/no/adapter"}]
    flags = ["--max_loras", "1", "--dtype", "float32", "--chat", "never", "--kv_cache_gib", "0.05"]
    assert _run(tmp_path, rows, *flags) == 0
    tokenizer = Tokenizer.load(resolve(EMBEDDED_MODEL))
    models = {"": model} | {name: adapters_made_here.merged(model, made[name], 2.0) for name in made}
    wanted = {
        name: tokenizer.decode(random_checkpoints.greedy(each, tokenizer.encode(_TEXT), 8))
        for name, each in models.items()
    }
    got = {row["id"]: row["text"] for row in rows_of(tmp_path, "out/c-*.jsonl")}
    assert got == {name + n: wanted[name] for name, n in ("a0", "a1", "b0", "b1")} | {"0": wanted[""]}
    assert len(set(wanted.values())) == 3
    (dead,) = rows_of(tmp_path, "out/c.dead_letters-*.jsonl")
    assert (dead["id"], dead["error"]) == ("1", "InvalidRequest")
    assert "adapter /no/adapter: no such folder" in dead["reason"]


def test_an_adapter_for_a_model_that_takes_none_is_refused_before_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, [{"prompt": _TEXT}], "--adapter", "org/a", "--backend", "fake") == 2
    assert "--adapter org/a: needs max_loras of 1 or more" in capsys.readouterr().err

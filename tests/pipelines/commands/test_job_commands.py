"""`millrace score` and `millrace embed`, with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaForCausalLM

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of
from tests.pipelines.refusals import Refused

ROWS = [{"id": str(n), "prompt": f"question {n}", "continuations": [" yes", " no"], "number": n} for n in range(6)]
ROWS[3]["continuations"] = []


@pytest.fixture
def questions(tmp_path: Path) -> str:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return str(tmp_path / "rows.jsonl")


@pytest.mark.usefixtures("shared_runtime")
def test_scores_of_files_go_to_files(questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--input", questions, "--output", str(tmp_path / "out/s"), "--backend", "fake", "--linger", "20"]
    assert dispatch(["score", *output]) == 0
    scored = rows_of(tmp_path, "out/s-*.jsonl")
    assert sorted(row["columns"]["number"] for row in scored) == [0, 1, 2, 4, 5]
    assert all([each["continuation"] for each in row["scores"]] == [" yes", " no"] for row in scored)
    assert all(each["logprob"] == sum(each["token_logprobs"]) < 0 for row in scored for each in row["scores"])
    (dead,) = rows_of(tmp_path, "out/s.dead_letters-*.jsonl")
    assert (dead["id"], dead["error"]) == ("3", "InvalidRequest")
    assert "5 completions" in capsys.readouterr().out
    assert dispatch(["score", *output, "--resume", "--quiet"]) == 0  # the one that failed fails again


@pytest.mark.usefixtures("shared_runtime")
def test_vectors_of_files_go_to_parquet(questions: str, tmp_path: Path) -> None:
    flags = ["--input", questions, "--output", str(tmp_path / "out/v.parquet"), "--pooling", "mean", "--linger", "20"]
    assert dispatch(["embed", *flags, "--backend", "fake"]) == 0
    table = pq.read_table(next((tmp_path / "out").glob("v-*.parquet")))
    vectors = np.array(table.column("embedding").to_pylist())
    assert vectors.shape == (6, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_flags_of_sampling_are_no_flags_of_these(refused: Refused) -> None:
    assert "temperature" in refused("embed", "--input", "rows.jsonl", "--temperature", "0.5")


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_with_a_model_scores_and_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    context, continuations = "What is the capital of Peru?", [" Lima", " Lisbon"]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": context, "continuations": continuations}))
    output = ["--input", str(tmp_path / "rows.jsonl"), "--quiet", "--dtype", "float32", "--chat", "never"]
    output += ["--linger", "0.5", "--kv_cache_gib", "0.05", "--output"]
    assert dispatch(["score", *output, str(tmp_path / "out/s")]) == 0
    assert dispatch(["embed", *output, str(tmp_path / "out/v")]) == 0
    folder = resolve(EMBEDDED_MODEL)
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)  # in eval mode
    encode = Tokenizer.load(folder).encode
    (scored,), (embedded,) = rows_of(tmp_path, "out/s-*.jsonl"), rows_of(tmp_path, "out/v-*.jsonl")
    with torch.inference_mode():
        for text, score in zip(continuations, scored["scores"], strict=True):
            ids = encode(context + text)
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            first = len(ids) - score["num_tokens"]
            wanted = logprobs[torch.arange(first - 1, len(ids) - 1), ids[first:]]
            assert score["token_ids"] == ids[first:]
            np.testing.assert_allclose(score["token_logprobs"], wanted, atol=1e-4)
        state = model.model(torch.tensor([encode(context)])).last_hidden_state[0, -1]
    np.testing.assert_allclose(embedded["embedding"], state / state.norm(), atol=1e-4)

"""Whole jobs in which some rows ask what their engine lacks: these alone are dead letters, by their class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of, write_rows
from tests.model_manager.backends.gguf_files import write_gguf
from tests.runtime_folders import runtime

__all__ = ["runtime"]

pytestmark = pytest.mark.engines

LACKS: dict[str, dict[str, Any]] = {
    "llama_cpp": {"presence_penalty": 0.5},
    "ctranslate2": {"logit_bias": {"3": 1.0}},
}
"""A parameter that the engine does not take."""
CONSTRAINTS = {
    "llama_cpp": ({"regex": "(?=a)b"}, "look-ahead"),
    "ctranslate2": ({"regex": "a+"}, "the back end ctranslate2 takes no constraint"),
}
"""A constraint that it cannot hold an output to, and what is said of it."""


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("backend", LACKS)
def test_rows_that_ask_what_the_engine_lacks_are_the_only_dead_letters_of_a_job(
    engine_python: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    engine_python(backend)
    (name,) = LACKS[backend]
    constraint, why = CONSTRAINTS[backend]
    rows: dict[str, dict[str, Any]] = {f"row {n}": {"prompt": f"What is {n} plus {n}?"} for n in range(20)}
    rows["row 4"] |= LACKS[backend]
    rows["row 9"] |= {"prompt": "word " * 5000}
    rows["row 14"] |= {"constraint": constraint}
    source = write_rows(tmp_path / "rows.jsonl", ({"id": key} | row for key, row in rows.items()))
    model = ["--model", str(write_gguf(tmp_path / "tiny-f32.gguf"))] if backend == "llama_cpp" else []
    flags = ["--backend", backend, *model, "--max_tokens", "6", "--max_num_seqs", "4"]
    assert dispatch(["run", "--input", str(source), "--output", f"{tmp_path}/out", *flags]) == 0

    dead = {row["id"]: row for row in rows_of(tmp_path, "out.dead_letters-*.jsonl")}
    assert {key: row["error"] for key, row in dead.items()} == {
        "row 4": "InvalidRequest",
        "row 9": "PromptTooLong",
        "row 14": "InvalidRequest",
    }
    assert dead["row 4"]["reason"].startswith(f"{name}=")
    assert f"the back end {backend} does not take it; back ends that do: " in dead["row 4"]["reason"]
    assert why in dead["row 14"]["reason"]
    answered = rows_of(tmp_path, "out-*.jsonl")
    assert sorted(row["id"] for row in answered) == sorted(rows.keys() - dead.keys())
    assert all(row["text"] and row["finish_reason"] in ("stop", "length") for row in answered)
    assert "dead letters: 3 rows (2 InvalidRequest, 1 PromptTooLong) in" in capsys.readouterr().out

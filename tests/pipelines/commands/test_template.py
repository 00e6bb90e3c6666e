"""`--template` and `--system`, with real processes: what a row is answered is what its prompt by hand is answered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL
from millrace.pipelines.cli import dispatch
from tests.json_lines import rows_of, write_rows
from tests.pipelines.refusals import Refused

ROWS = [
    {"id": "a", "text": "hello", "count": 3},
    {"id": "b", "txt": "no such column"},
    {"id": "c", "text": None},
    {"id": "d", "text": "with {braces}", "count": 1},
]
FLAGS = ["--backend", "fake", "--linger", "30", "--quiet"]


def answers(command: str, source: Path, output: Path, *flags: str) -> dict[str, Any]:
    """The results by id, without what differs from run to run."""
    sampled = ["--max_tokens", "8"] if command == "run" else []
    assert dispatch([command, "--input", str(source), "--output", str(output), *FLAGS, *sampled, *flags]) == 0
    found = rows_of(output.parent, f"{output.name}-*")
    return {row["id"]: (row.get("text"), row.get("embedding"), row["usage"]["prompt_tokens"]) for row in found}


def letters(output: Path) -> dict[str, Any]:
    return {letter["id"]: letter for letter in rows_of(output.parent, f"{output.name}.dead*")}


@pytest.mark.usefixtures("shared_runtime")
def test_prompts_are_made_of_columns_under_a_system_message(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", ROWS)
    flags = ["--template", "{{{count}}} Sum: {text}!", "--system", "You are brief."]
    templated = answers("run", source, tmp_path / "t", *flags)
    system = {"role": "system", "content": "You are brief."}
    by_hand = [
        {"id": "a", "messages": [system, {"role": "user", "content": "{3} Sum: hello!"}]},
        {"id": "d", "messages": [system, {"role": "user", "content": "{1} Sum: with {braces}!"}]},
    ]
    assert templated == answers("run", write_rows(tmp_path / "hand.jsonl", by_hand), tmp_path / "h")
    dead = letters(tmp_path / "t")
    assert (dead["b"]["error"], dead["b"]["row"]) == ("InvalidRequest", ROWS[1])
    assert "no `count`" in dead["b"]["reason"]
    assert "`id`, `txt`" in dead["b"]["reason"]
    assert "no `count`" in dead["c"]["reason"]


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize("name", ["lines.txt", "strings.jsonl"])
def test_a_row_that_is_text_is_the_column_text_and_a_letter_has_it_as_it_was(name: str, tmp_path: Path) -> None:
    texts = ["one", "two words", "long " * 5000]
    lines = texts if name.endswith(".txt") else [json.dumps(text) for text in texts]
    (tmp_path / name).write_text("\n".join(lines))
    templated = answers("run", tmp_path / name, tmp_path / "t", "--template", "Say {text}")
    tokens = [
        of
        for _, _, of in answers(
            "run", write_rows(tmp_path / "h.jsonl", ["Say one", "Say two words"]), tmp_path / "h"
        ).values()
    ]
    assert [of for _, _, of in templated.values()] == tokens
    (dead,) = letters(tmp_path / "t").values()
    assert dead["error"] == "PromptTooLong"
    assert dead["row"].strip() == texts[2].strip()


@pytest.mark.usefixtures("shared_runtime")
def test_vectors_are_of_the_template_too(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", ROWS[:1])
    by_hand = write_rows(tmp_path / "hand.jsonl", [{"id": "a", "prompt": "query: hello"}])
    templated = answers("embed", source, tmp_path / "t", "--template", "query: {text}")
    assert templated == answers("embed", by_hand, tmp_path / "h")


@pytest.mark.usefixtures("shared_runtime")
def test_a_rows_own_system_message_stays_and_token_ids_take_none(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hello"}]
    source = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "messages": messages}, {"id": "b", "prompt": [5, 6]}])
    with_system = answers("run", source, tmp_path / "s", "--system", "You are brief.")
    assert with_system == answers(
        "run", write_rows(tmp_path / "h.jsonl", [{"id": "a", "messages": messages}]), tmp_path / "h"
    )
    assert "token ids" in letters(tmp_path / "s")["b"]["reason"]


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--template", "Sum {text"], "a { stands without its pair"),
        (["--template", "Sum }"], "a } stands without its pair"),
        (["--template", "Sum {}"], "names no column"),
        (["--template", "Sum {text:>9}"], "a column's name alone, {text}"),
        (["--template", "Sum"], "has no column"),
        (["--template", "{text}", "--prompt_column", "text"], "exclude each other"),
        (["--template", "{txt}", "--input", "rows.csv"], "did you mean text?"),
        (["--system", ""], "takes the text of a system message"),
        (["--template", "{id}", "--system", "x", "--chat", "never"], "--chat never"),
        (["--template", "{id}", "--system", "x", "--model", "plain"], "plain has no chat template"),
    ],
)
def test_what_cannot_be_is_one_error(
    flags: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.csv").write_text("id,text\n1,hello\n")
    model = shutil.copytree(resolve(EMBEDDED_MODEL), tmp_path / "plain")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert told in refused.run("--input", "rows.jsonl", "--output", "out/c", *FLAGS, *flags)
    assert not list(tmp_path.glob("out/c-*"))

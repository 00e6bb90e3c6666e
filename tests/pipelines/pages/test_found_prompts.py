import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace import Prompt
from millrace.pipelines.pages.found_prompts import Input, find_prompts
from millrace.transforms.elements.prompt_rows import RowShape
from tests.json_lines import write_rows


def test_a_prompt_is_found_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"one"\n{"prompt": "two"}\n')
    found = find_prompts(Input([str(path)]), [(f"{path}@6", ""), (f"{path}@0", "another hash"), (f"{path}@3", "")])
    assert {key[0].rpartition("@")[2]: prompt.text for key, prompt in found.items()} == {"6": "two", "0": "one"}


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet"])
def test_a_prompt_is_found_by_an_id_of_its_own(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"p.{extension}"
    rows = [{"id": f"r{number}", "prompt": f"question {number}"} for number in range(500)]
    if extension == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif extension == "csv":
        path.write_text("id,prompt\n" + "".join(f"{row['id']},{row['prompt']}\n" for row in rows))
    else:
        write_rows(path, rows)
    found = find_prompts(Input([str(path)]), [("r3", ""), ("r499", ""), ("absent", "")])
    assert {key[0]: prompt.text for key, prompt in found.items()} == {"r3": "question 3", "r499": "question 499"}
    assert find_prompts(Input([str(path)]), [("r499", "")], most_rows=10) == {}


def test_rows_of_one_id_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": "one"}, {"id": "a", "prompt": "two"}]
    path = write_rows(tmp_path / "p.jsonl", rows)
    hashes = [Prompt(text=row["prompt"]).prompt_hash for row in rows]
    found = find_prompts(Input([str(path)]), [("a", each) for each in hashes])
    assert [found["a", each].text for each in hashes] == ["one", "two"]


def test_a_file_that_is_no_input_is_not_read_whatever_an_id_says(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("a document")
    source = Input([f"{tmp_path}/docs/*.txt"], RowShape(documents=True, row_params=False), "documents")
    keys = [(f"{tmp_path}/{name}", "") for name in ("secret.txt", "docs/a.txt", "docs/../secret.txt")]
    assert {key[0]: prompt.text for key, prompt in find_prompts(source, keys).items()} == {
        f"{tmp_path}/docs/a.txt": "a document"
    }


def test_messages_and_templates_are_shown_as_the_model_was_asked(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [{"role": "user", "content": "hi"}]}, {"id": "b", "text": "news"}]
    path = str(write_rows(tmp_path / "p.jsonl", rows))
    assert find_prompts(Input([path]), [("a", "")])["a", ""].text == "user: hi"
    shape = RowShape(template="Summarize: {text}")
    assert find_prompts(Input([path], shape), [("b", "")])["b", ""].text == "Summarize: news"


def test_an_input_that_is_gone_gives_none(tmp_path: Path) -> None:
    assert find_prompts(Input([f"{tmp_path}/gone.jsonl"]), [("a", "")]) == {}
    (tmp_path / "bad.parquet").write_text(json.dumps({}))
    assert find_prompts(Input([f"{tmp_path}/bad.parquet"]), [("a", "")]) == {}

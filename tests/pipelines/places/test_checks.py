"""A column that no table has is told before anything runs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.model_manager.wire.errors import ConfigError
from millrace.pipelines.flags.job_options import parse
from millrace.pipelines.places.checks import check
from millrace.transforms.tasks import TaskName


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(b"\xef\xbb\xbfbody,when,amount\nx,y,1\n")
    pq.write_table(pa.table({"body": ["x"], "when": ["y"]}), "a.parquet")
    Path("a.jsonl").write_text("{}\n")
    Path("cut.parquet").write_bytes(b"PAR1")


def checked(task: TaskName, *flags: str) -> None:
    check(parse([*flags, *(["--labels", "a,b"] if task == "classify" else [])], task))


def test_a_column_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigError) as told:
        checked("classify", "--input", "a.csv", "--text_column", "bdy")
    assert str(told.value) == (
        "--text_column bdy: not in a.csv, whose columns are body, when, amount: did you mean body?"
    )
    with pytest.raises(ConfigError, match=r"^--prompt_column x: not in a.parquet, whose columns are body, when$"):
        checked("generate", "--input", "*.parquet", "--prompt_column", "x")


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (
            "generate",
            "--input a.csv: has no column prompt or messages: name one by --prompt_column; it has body, when, ",
        ),
        ("classify", "--input a.csv: has no column text or document or prompt: name one by --text_column; it has body"),
    ],
)
def test_a_table_without_a_prompt_is_told_before_the_job(task: TaskName, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked(task, "--input", "a.csv")
    assert str(error.value).startswith(told)


def test_a_template_names_its_columns_itself() -> None:
    checked("generate", "--input", "a.csv", "--template", "{body}")


@pytest.mark.parametrize("columns", ["id,prompt", "id,messages", "custom_id,url,body"])
def test_a_table_with_a_prompt_somewhere_is_taken(columns: str) -> None:
    Path("b.csv").write_text(f"{columns}\n")
    checked("generate", "--input", "b.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_column_that_is_there_is_taken(name: str) -> None:
    checked("classify", "--input", name, "--text_column", "body")


@pytest.mark.parametrize("name", ["a.jsonl", "cut.parquet", "none.csv", "gs://b/a.csv"])
def test_what_has_no_head_to_be_read_is_left_to_its_reader(name: str) -> None:
    checked("classify", "--input", name, "--text_column", "bdy")

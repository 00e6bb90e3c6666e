import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from millrace.model_manager.wire.errors import ConfigError, EngineLost
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.files.formats import OutputFormat
from millrace.transforms.generate import Generate
from millrace.transforms.writing.answered_rows import entry, in_order
from millrace.transforms.writing.completed_rows import completed_ids
from millrace.transforms.writing.output_files import OutputFiles
from millrace.transforms.writing.output_rows import write_rows
from millrace.transforms.writing.resume import SkipCompleted, _SkipElsewhere
from millrace.transforms.writing.salvage import salvage
from millrace.transforms.writing.write_completions import WriteCompletions
from tests.transforms.clients import PickyClient
from tests.transforms.running import check, pipeline


def line(identity: str, finish_reason: str = "stop") -> str:
    usage = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
    row = {"id": identity, "text": "t", "finish_reason": finish_reason, "usage": usage, "model": "m", "columns": {}}
    return json.dumps(row) + "\n"


def leave(folder: Path, name: str, content: str) -> None:
    shard = folder / "out.tmp" / name / "completions-x.jsonl"
    shard.parent.mkdir(parents=True)
    shard.write_text(content)


def todo(folder: Path, *ids: str, **options: Any) -> list[str]:
    """The prompts that are left."""
    found: list[str] = []
    with pipeline() as p:
        prompts = p | beam.Create([Prompt(id=identity, text="a") for identity in ids])
        left = prompts | SkipCompleted(str(folder / "out"), **options)
        _ = left | beam.Map(lambda prompt: prompt.id) | beam.io.WriteToText(str(folder / "todo"))
    for path in folder.glob("todo-*"):
        found += path.read_text().split()
        path.unlink()
    return sorted(found)


def test_prompts_that_have_a_completion_are_skipped_and_those_that_failed_are_not(tmp_path: Path) -> None:
    (tmp_path / "out-00000-of-00002.jsonl").write_text(line("a") + line("b", "length"))
    (tmp_path / "out-00001-of-00002.jsonl").write_text(line("c", "error"))
    assert todo(tmp_path, "a", "b", "c", "d") == ["c", "d"]


def test_without_earlier_output_nothing_is_skipped(tmp_path: Path) -> None:
    assert todo(tmp_path, "a", "b") == ["a", "b"]


@pytest.mark.parametrize("output_format", ["jsonl", "parquet", "csv"])
def test_complete_rows_of_an_interrupted_run_are_kept(tmp_path: Path, output_format: str) -> None:
    leave(tmp_path, "run1", line("a") + line("b") + line("c")[:30])
    leave(tmp_path, "run2", line("b") + line("d", "error") + line("e"))
    assert todo(tmp_path, *"abcdef", output_format=output_format) == ["c", "d", "f"]
    (shard,) = OutputFiles(str(tmp_path / "out")).existing("completions")
    assert shard.endswith(f"out-salvaged-00000-of-00001.{output_format}")
    assert sorted(completed_ids(shard)) == ["a", "b", "e"]
    assert not (tmp_path / "out.tmp").exists()


@pytest.mark.parametrize("output_format", ["jsonl", "parquet", "csv"])
def test_many_complete_rows_become_files_of_bounded_size(
    tmp_path: Path, output_format: OutputFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.transforms.writing.salvage.FULL_BYTES", 3 * len(line("r10")))
    leave(tmp_path, "run1", "".join(line(f"r{number}") for number in range(10, 18)))
    leave(tmp_path, "run2", "".join(line(f"r{number}") for number in range(16, 20)))
    salvage(OutputFiles(str(tmp_path / "out")), output_format)
    files = OutputFiles(str(tmp_path / "out")).existing("completions")
    assert [Path(file).name for file in sorted(files)] == [
        f"out-salvaged-{number:05d}-of-00004.{output_format}" for number in range(4)
    ]
    assert sorted(identity for file in files for identity in completed_ids(file)) == [f"r{n}" for n in range(10, 20)]


def test_rows_that_were_kept_already_are_not_kept_again(tmp_path: Path) -> None:
    (tmp_path / "out-00000-of-00001.jsonl").write_text(line("a"))
    leave(tmp_path, "run", line("a") + line("b"))
    salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
    assert list(completed_ids(str(tmp_path / "out-resume1-salvaged-00000-of-00001.jsonl"))) == ["b"]
    leave(tmp_path, "another", line("a") + line("b"))
    salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
    assert written(str(tmp_path / "out")) == ["a", "b"]


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_a_run_that_failed_halfway_and_was_resumed_has_each_prompt_once(tmp_path: Path, output_format: str) -> None:
    output = str(tmp_path / "out")
    good = [Prompt(id=str(number), text="fine") for number in range(20)]
    for broken in (True, True, False):
        prompts = [*good[:10], Prompt(id="x", text="lost" if broken else "fine"), *good[10:]]
        with contextlib.suppress(EngineLost), pipeline() as p:
            left = p | beam.Create(prompts, reshuffle=False) | SkipCompleted(output, output_format=output_format)
            completions = left | Generate("m", open_client=PickyClient)
            _ = completions | WriteCompletions(output, output_format=output_format, if_exists="resume")
    ids = [identity for path in OutputFiles(output).existing("completions") for identity in completed_ids(path)]
    assert sorted(ids) == sorted([prompt.id for prompt in good] + ["x"])


def written(output: str) -> list[str]:
    return sorted(identity for path in OutputFiles(output).existing("completions") for identity in completed_ids(path))


def run(output: str, if_exists: Any, *texts: str) -> None:
    with pipeline() as p:
        prompts = p | beam.Create([Prompt(id=text.split()[0], text=text) for text in texts], reshuffle=False)
        if if_exists == "resume":
            prompts = prompts | SkipCompleted(output)
        completions = prompts | beam.Map(fail_at_the_end) | Generate("m", open_client=PickyClient)
        _ = completions | WriteCompletions(output, if_exists=if_exists)


def fail_at_the_end(prompt: Prompt) -> Prompt:
    if prompt.text == "end":
        raise RuntimeError("no more")
    return prompt


def test_an_overwriting_run_that_was_interrupted_is_resumed_as_one(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    run(output, "refuse", "a old", "b old")
    leave(tmp_path, "stale", line("b"))
    with pytest.raises(RuntimeError, match="no more"):
        run(output, "overwrite", "a new", "end", "b new", "end")
    assert not (tmp_path / "out.tmp" / "stale").exists()
    assert written(output) == ["a", "b"], "what is there stays until there is something in its place"
    with pytest.raises(RuntimeError, match="no more"):
        run(output, "resume", "a new", "c new", "end", "b new")
    run(output, "resume", "a new", "b new", "c new")
    assert written(output) == ["a", "b", "c"]
    texts = [json.loads(row)["text"] for path in tmp_path.glob("out-*") for row in path.read_text().splitlines()]
    assert sorted(texts) == ["A NEW", "B NEW", "C NEW"]
    assert not (tmp_path / "out.tmp").exists()


def test_files_that_an_interrupted_overwriting_run_had_finished_are_kept(tmp_path: Path) -> None:
    files = OutputFiles(str(tmp_path / "out"))
    (tmp_path / "out-00000-of-00002.jsonl").write_text(line("a"))
    (tmp_path / "out-00001-of-00002.jsonl").write_text(line("b"))
    files.supersede()
    (tmp_path / "out-00000-of-00002.jsonl").write_text(line("new"))
    assert todo(tmp_path, "new", "a", "b") == ["a", "b"]
    assert files.superseded() == {str(tmp_path / "out-00001-of-00002.jsonl")}


@pytest.mark.parametrize("output_format", ["jsonl", "parquet", "csv"])
def test_a_row_with_the_id_of_an_answered_one_and_another_prompt_is_answered(
    tmp_path: Path, output_format: str
) -> None:
    output = str(tmp_path / "out")

    def resumed(*prompts: Prompt, **options: Any) -> list[str]:
        with pipeline() as p:
            left = p | beam.Create(prompts, reshuffle=False)
            left = left | SkipCompleted(output, output_format=output_format, **options)
            completions = left | Generate("m", open_client=PickyClient)
            _ = completions | WriteCompletions(output, output_format=output_format, if_exists="resume")
        return written(output)

    first = Prompt(id="a", text="one")
    assert resumed(first) == ["a"]
    assert resumed(first, Prompt(id="a", text="two"), ids_alone=True) == ["a"]
    others = [Prompt(id="a", text="two"), Prompt(id="a", text="one", params={"max_tokens": 3})]
    others.append(Prompt(id="a", text="one", columns={"model": "other"}))
    assert resumed(first, *others) == ["a"] * 4
    assert resumed(first, *others) == ["a"] * 4, "all are answered now"


def test_an_interrupted_run_keeps_all_rows_of_an_id(tmp_path: Path) -> None:
    rows = [json.loads(line("a")) | {"prompt_hash": each} for each in ("01", "02", "02")]
    leave(tmp_path, "run", "".join(json.dumps(row) + "\n" for row in rows))
    salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
    assert written(str(tmp_path / "out")) == ["a", "a"]


def test_a_row_that_comes_again_after_many_others_is_kept_once(tmp_path: Path) -> None:
    leave(tmp_path, "run1", "".join(line(f"r{number}") for number in range(1500)) + line("r3"))
    leave(tmp_path, "run2", "".join(line(f"r{number}") for number in range(1400, 2500)))
    (tmp_path / "out-00000-of-00001.jsonl").write_text("".join(line(f"r{number}") for number in range(0, 2500, 2)))
    salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
    assert written(str(tmp_path / "out")) == sorted(f"r{number}" for number in range(2500))


@pytest.mark.parametrize("output_format", ["jsonl", "parquet", "csv"])
def test_a_row_with_a_damaged_text_is_asked_again_after_an_interrupted_run(tmp_path: Path, output_format: str) -> None:
    leave(tmp_path, "run", line("a") + line("b") + line("c"))
    shard = tmp_path / "out.tmp" / "run" / "completions-x.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b'"b", "text": "t"', b'"b", "text": "\xff"'))
    assert todo(tmp_path, "a", "b", "c", output_format=output_format) == ["b"]
    assert written(str(tmp_path / "out")) == ["a", "c"]


@pytest.mark.parametrize("damage", ["finish_reason", "text", "columns"])
@pytest.mark.parametrize("output_format", ["parquet", "csv"])
def test_a_row_that_cannot_be_written_is_told_with_the_folder_it_is_in(
    tmp_path: Path, output_format: OutputFormat, damage: str
) -> None:
    leave(tmp_path, "run", line("a") + line("b").replace(damage, damage[:-1] + "~"))
    files = OutputFiles(str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"out\.tmp: a row .* does not fit the output.*remove its line"):
        salvage(files, output_format)
    assert files.interrupted("completions"), "nothing is lost"
    leave(tmp_path, "another", line("c"))
    (tmp_path / "out.tmp" / "run" / "completions-x.jsonl").write_text(line("a"))
    salvage(files, output_format)
    assert written(str(tmp_path / "out")) == ["a", "c"]


def test_rows_of_failed_prompts_take_no_object_while_an_interrupted_run_is_read(tmp_path: Path) -> None:
    rows = 100_000
    failed = "".join(f'{{"id":"{number}","finish_reason":"error"}}\n' for number in range(rows))
    leave(tmp_path, "run", failed + line("a"))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == entry("a", None)
    assert written(str(tmp_path / "out")) == ["a"]
    assert peak - before < 100 * rows, "a byte for each line, and a few chunks of the shard"


def test_of_large_rows_few_are_held_while_an_interrupted_run_is_read(tmp_path: Path) -> None:
    rows, size = 150, 2**20
    large = [line(f"r{number}").replace('"t"', f'"{"t" * size}"') for number in range(rows)]
    leave(tmp_path, "run", "".join(large) + line("r3"))
    del large
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written(str(tmp_path / "out")) == sorted(f"r{number}" for number in range(rows))
    assert peak - before < rows * size / 2, "two batches of 16 MiB, and buffers"


@pytest.mark.parametrize("known", [[], ["b"]])
def test_what_a_shard_gains_while_it_is_read_is_not_kept(
    tmp_path: Path, known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = line("a") + line("b") + line("c") + line("d")
    (tmp_path / "out-00000-of-00001.jsonl").write_text("".join(map(line, known)))
    leave(tmp_path, "run", whole[: whole.index('"c"') + 5])

    def grown(entries: bytearray) -> Any:
        (tmp_path / "out.tmp" / "run" / "completions-x.jsonl").write_text(whole + whole + line("e")[:20])
        return in_order(entries)

    monkeypatch.setattr("millrace.transforms.writing.salvage.in_order", grown)
    entries = salvage(OutputFiles(str(tmp_path / "out")), "jsonl")
    assert written(str(tmp_path / "out")) == ["a", "b"]
    assert bytes(entries) == entry("a", None) + entry("b", None)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("output_format", ["jsonl", "parquet", "csv"])
def test_finished_and_interrupted_rows_are_skipped_on_any_runner(
    tmp_path: Path, output_format: OutputFormat, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.transforms.writing.resume._runs_here", lambda _: not elsewhere)
    leave(tmp_path, "first", line("a") + line("same"))
    salvage(OutputFiles(str(tmp_path / "out")), output_format)
    leave(tmp_path, "second", line("b") + line("same") + line("e", "error") + line("cut")[:20])
    assert todo(tmp_path, "a", "b", "same", "e", "cut", output_format=output_format) == ["cut", "e"]
    assert written(str(tmp_path / "out")) == ["a", "b", "same"]


def test_a_table_that_is_decoded_anew_for_each_bundle_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_ones = []
    monkeypatch.setattr("millrace.transforms.writing.resume.in_order", lambda each: sorted_ones.append(in_order(each)))
    tables = [b"".join(entry(identity, None) for identity in ids) for ids in ("ba", "ba", "c")]
    assert tables[0] is not tables[1]
    skip = _SkipElsewhere(ids_alone=False)
    skip.setup()
    left = [[each.id for i in "abc" for each in skip.process(Prompt(id=i, text="t"), table)] for table in tables]
    assert left == [["c"], ["c"], ["a", "b"]]
    assert len(sorted_ones) == 2


def test_skipping_is_part_of_a_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pipeline() as p:
        left = p | beam.Create([Prompt(id="a", text="a")]) | SkipCompleted(str(tmp_path / "out"))
        assert left.element_type == Prompt
        check(left, lambda rows: len(rows) == 1)
    assert "Process method" not in caplog.text, "Beam has nothing to warn of"


@pytest.mark.parametrize("output_format", ["jsonl", "csv", "parquet"])
def test_an_output_that_was_cut_off_is_named(tmp_path: Path, output_format: str) -> None:
    leave(tmp_path, "run", line("a") + line("b"))
    salvage(OutputFiles(str(tmp_path / "out")), output_format)  # type: ignore[arg-type]
    (path,) = tmp_path.glob("out-*")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"stop")])
    with pytest.raises(ConfigError, match=f"{path.name}: cut off or damaged.*put back a copy"):
        list(completed_ids(str(path)))


@pytest.mark.parametrize("prompt_hash", ["zz", "0f 0f 0f 0f 0f 0f", "    ", "-1", "+0", "\u0661", "a" * 17])
@pytest.mark.parametrize("output_format", ["jsonl", "csv", "parquet"])
def test_an_output_with_a_hash_that_is_none_is_named(tmp_path: Path, output_format: str, prompt_hash: str) -> None:
    rows = [json.loads(line(name)) | {"prompt_hash": "0f"} for name in "ab"]
    leave(tmp_path, "run", "".join(json.dumps(row) + "\n" for row in rows))
    salvage(OutputFiles(str(tmp_path / "out")), output_format)  # type: ignore[arg-type]
    (path,) = tmp_path.glob("out-*")
    rows[1]["prompt_hash"] = prompt_hash
    with path.open("wb") as stream:
        write_rows(((json.dumps(row) + "\n").encode() for row in rows), stream, str(path), None)
    with pytest.raises(ConfigError, match=f"{path.name}: cut off or damaged.*prompt_hash: .*put back a copy"):
        todo(tmp_path, "a", "b", output_format=output_format)


def test_a_row_whose_hash_was_damaged_is_asked_again_after_an_interrupted_run(tmp_path: Path) -> None:
    rows = [json.loads(line(name)) | {"prompt_hash": said} for name, said in (("a", "0f"), ("b", "zz"))]
    leave(tmp_path, "run", "".join(json.dumps(row) + "\n" for row in rows))
    assert salvage(OutputFiles(str(tmp_path / "out")), "jsonl") == entry("a", "0f")
    assert written(str(tmp_path / "out")) == ["a"]


def test_what_is_missing_to_read_an_output_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(path: str) -> Any:
        raise ConfigError(f"{path}: needs a package")

    monkeypatch.setattr("millrace.transforms.writing.completed_rows.open_file", not_installed)
    with pytest.raises(ConfigError, match=r"^x: needs a package$"):
        list(completed_ids("x"))

"""Whole jobs whose model changes in the middle, with a real manager and its engines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from millrace import DeadLetter, Generate, Prompt, SamplingParams, WatchedFile, WriteCompletions
from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL, ManagerConfig, ModelConfig
from millrace.model_manager.wire.messages import Status
from millrace.pipelines.commands import job_commands
from tests.json_lines import rows_of, write_rows
from tests.model_manager.engine import random_checkpoints
from tests.runtime_folders import status_of
from tests.transforms.running import pipeline
from tests.waiting import eventually

PROMPTS = 96
HALF = PROMPTS // 2
STEP = "MILLRACE_FAKE_STEP_SECONDS"
QUICK = ["--linger=0.5", "--log_level=info", "--chat=never"]
MAX_TOKENS = 12
FAKE = ["--backend=fake", f"--max_tokens={MAX_TOKENS}", "--max_num_seqs=8"]


class Job:
    """A job over the prompts, and what happens beside it.

    The prompts come as they are read: the second half once the model that is to be the last is loaded, and the last
    prompt once no other model has an engine. So however slowly anything goes, both models have rows.
    """

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.engine = FAKE
        self.folder = folder
        self.runtime = runtime
        self.file = folder / "current"
        self.loaded = folder / "loaded"
        """Is there once the last model is loaded, and may take the second half of the rows."""
        self.alone = folder / "alone"
        """Is there once no other model has an engine."""
        self.pids: set[frozenset[int]] = set()
        """Engines that were seen at the same time."""
        self.models: list[set[str]] = []
        """Models that had an engine, by name of their folder, look after look."""
        prompts = ({"id": f"p{n}", "prompt": f"question {n}"} for n in range(PROMPTS))
        write_rows(folder / "prompts.jsonl", prompts)
        for index, name in enumerate("abc"):  # what the fake engine answers depends on the size of the vocabulary
            shutil.copytree(resolve(EMBEDDED_MODEL), folder / name)
            config = json.loads((folder / name / "config.json").read_bytes())
            config["vocab_size"] -= index
            (folder / name / "config.json").write_text(json.dumps(config))

    def run(self, output: str, *flags: str, model: str = "a") -> int:
        places = ["--input", str(self.folder / "prompts.jsonl"), "--output", str(self.folder / output / "c")]
        return job_commands.generate([*places, "--model", str(self.folder / model), *QUICK, *self.engine, *flags])

    def run_with_updates(self, output: str, *flags: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_commands, "reader", lambda _: Paced(self))
            return self.run(output, f"--model_updates=watch:{self.file}", "--model_updates_every=0.05", *flags)

    def run_with_a_change(self, output: str, **settings: Any) -> None:
        """A job as a program, with other settings of the engine."""
        model = ModelConfig.parse({"model": str(self.folder / "a")} | settings)
        with pipeline() as p:
            prompts, _ = p | Paced(self)
            generate = Generate(
                model,
                SamplingParams(max_tokens=MAX_TOKENS, min_tokens=MAX_TOKENS, temperature=0),
                manager=ManagerConfig(linger=0.5),
                chat=False,
                updates=WatchedFile(str(self.file), every=0.05),
            )
            results, failed = prompts | generate.with_exception_handling()
            _ = (results, failed) | WriteCompletions(str(self.folder / output / "c"))

    def written(self) -> int:
        """Rows of the running job that are on the disk; the last one may be being written."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("out/c.tmp/*/completions-*.jsonl"))

    def name(self, model: str) -> None:
        """As one should write a file that others read."""
        (self.folder / "next").write_text(str(self.folder / model))
        (self.folder / "next").rename(self.file)

    def rows(self, output: str) -> dict[str, dict[str, Any]]:
        """The output's rows by their ids; no id is there twice."""
        rows = rows_of(self.folder / output, "c-*.jsonl")
        found = {row["id"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    def name_in_the_middle(self, model: str) -> None:
        """Once some rows are answered, while others are being."""
        eventually(lambda: self.finished() > PROMPTS // 6)
        self.name(model)

    def name_and_see(self, model: str) -> None:
        """Until the manager knows of the model, which is then being loaded."""
        self.name(model)
        eventually(lambda: model in self.known())

    def status(self) -> Status | None:
        return status_of(self.runtime)

    def known(self) -> set[str]:
        status = self.status()
        return {Path(model.model).name for model in status.models} if status else set()

    def finished(self) -> int:
        status = self.status()
        return sum(job.finished for job in status.jobs) if status else 0

    def ready(self) -> set[str]:
        status = self.status()
        return {Path(model.model).name for model in status.models if model.state == "ready"} if status else set()

    def engines(self) -> dict[str, list[int]]:
        status = self.status()
        models = status.models if status else []
        running = {Path(model.model).name: model.pids for model in models if model.pids}
        self.pids.add(frozenset(pid for pids in running.values() for pid in pids))
        if running:
            self.models.append(set(running))
        return running

    @contextmanager
    def beside(self, last: str, update: Callable[[], None]) -> Iterator[None]:
        """Update the model while a job runs, see it load and the others go, and look at engines until the job ends."""
        over = threading.Event()

        def look() -> None:
            update()
            eventually(lambda: last in self.ready() and self.engines(), f"{last} is loaded")
            self.loaded.touch()
            eventually(lambda: self.written() == PROMPTS - 1, "nobody asks the former models any more")
            eventually(lambda: set(self.engines()) == {last}, f"{last} is alone")
            self.alone.touch()
            while not over.wait(0.05):
                self.engines()

        thread = threading.Thread(target=look)
        thread.start()
        yield
        over.set()
        thread.join()

    def expect(self, output: str, *models: str) -> None:
        """All prompts are completed, once, each by the model that its row names; all models have taken part."""
        rows = self.rows(output)
        assert sorted(rows) == sorted(f"p{n}" for n in range(PROMPTS))
        makers = {(Path(row["model"]).name, row["revision"]) for row in rows.values()}
        assert len(makers) == len(models), makers
        assert {name for name, _ in makers} == set(models)
        os.environ.pop(STEP)
        for model in models:
            assert self.run(f"alone-{model}", "--quiet", model=model) == 0
            alone = self.rows(f"alone-{model}")
            mine = {name: row for name, row in rows.items() if Path(row["model"]).name == model}
            assert {name: row["text"] for name, row in mine.items()} == {name: alone[name]["text"] for name in mine}
            assert {row["revision"] for row in mine.values()} == {row["revision"] for row in alone.values()}


class Paced(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """The prompts of a job, and no dead letters, as a reader of files gives them."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._places = job.loaded, job.alone

    def expand(self, root: Any) -> Any:
        numbers = root | beam.Create(range(PROMPTS), reshuffle=False)
        letters = root | "No letters" >> beam.Create([], reshuffle=False)
        return (
            numbers | beam.FlatMap(_paced, *self._places).with_output_types(Prompt),
            letters | beam.Map(lambda letter: letter).with_output_types(DeadLetter),
        )


def _paced(number: int, loaded: Path, alone: Path) -> Iterator[Prompt]:
    """A prompt in its time. Where it waits for engines to end, rows that fail at once have the step take the answers
    that have come: an engine ends when its last answer is taken.
    """
    if number == HALF:
        eventually(loaded.exists)
    if number == PROMPTS - 1:
        end = time.monotonic() + 300
        while not alone.exists():
            assert time.monotonic() < end, "the former model's engine does not end"
            yield Prompt(text="x", params={"max_tokens": -1})
            time.sleep(0.1)
    yield Prompt(id=f"p{number}", text=f"question {number}")


@pytest.fixture
def job(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv(STEP, "0.03")
    return Job(tmp_path, runtime)


def test_a_job_goes_over_to_another_model_in_the_middle(job: Job) -> None:
    with job.beside("b", lambda: job.name_in_the_middle("b")):
        job.run_with_a_change("out", backend="fake", max_num_seqs=8)
    job.expect("out", "a", "b")
    assert job.models[-1] == {"b"}, "the old process is gone"
    assert max(len(pids) for pids in job.pids) == 2


def test_a_bad_update_leaves_the_model_and_the_next_one_is_made(
    job: Job, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def update() -> None:
        job.name_in_the_middle("absent")
        eventually(lambda: f"the update to {job.folder}/absent failed" in caplog.text)
        job.name("b")

    with job.beside("b", update):
        assert job.run_with_updates("out") == 0
    job.expect("out", "a", "b")
    shown = capsys.readouterr()
    assert f"the update to {job.folder}/absent failed: --model" in shown.err
    assert "warning:      the model was not changed (ModelNotFound): the log says to which, and why" in shown.out


@pytest.mark.slow
def test_of_two_quick_updates_the_later_one_holds(job: Job) -> None:
    def update() -> None:
        eventually(lambda: job.finished() > PROMPTS // 6)
        job.name_and_see("b")
        job.name("c")

    with job.beside("c", update):
        assert job.run_with_updates("out") == 0
    models = {Path(row["model"]).name for row in job.rows("out").values()}
    assert {"a", "c"} <= models
    job.expect("out", *models)
    assert job.models[-1] == {"c"}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["engine", "manager"])
def test_a_change_outlives_the_end_of_the_engine_and_of_the_manager(job: Job, role: str) -> None:
    def update() -> None:
        eventually(lambda: job.finished() > PROMPTS // 6)
        status = eventually(job.status)
        victims = [process.pid for process in status.processes if process.role == role]
        job.name_and_see("b")
        os.kill(victims[0], signal.SIGKILL)

    with job.beside("b", update):
        assert job.run_with_updates("out") == 0
    job.expect("out", "a", "b")
    assert job.models[-1] == {"b"}


@pytest.mark.slow
def test_each_worker_process_changes_its_model(job: Job) -> None:
    flags = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    with job.beside("b", lambda: job.name_in_the_middle("b")):
        assert job.run_with_updates("out", *flags) == 0
    job.expect("out", "a", "b")
    assert job.models[-1] == {"b"}


@pytest.mark.slow
def test_a_job_goes_over_to_other_weights_of_real_engines(job: Job) -> None:
    config = random_checkpoints.llama_gqa()
    config.vocab_size = 1536  # of the tokenizer that stays
    config.eos_token_id = None
    for path in (job.folder / "b").glob("*config.json"):
        path.unlink()
    random_checkpoints.write(job.folder / "b", config)
    shutil.copy(job.folder / "a" / "tokenizer_config.json", job.folder / "b")
    shutil.rmtree(job.folder / "a")
    shutil.copytree(resolve(EMBEDDED_MODEL), job.folder / "a")
    job.engine = ["--temperature=0", f"--max_tokens={MAX_TOKENS}", f"--min_tokens={MAX_TOKENS}", "--kv_cache_gib=0.05"]
    with job.beside("b", lambda: job.name_in_the_middle("b")):
        job.run_with_a_change("out", kv_cache_gib=0.05)
    job.expect("out", "a", "b")
    assert job.models[-1] == {"b"}
    assert max(len(pids) for pids in job.pids) == 2

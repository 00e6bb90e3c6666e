"""`millrace plan`: what a job will take, and what is wrong with the question."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from millrace.pipelines.cli import dispatch
from tests.pipelines.refusals import Refused

ROOT = Path(__file__).parents[3]
PRICES = """
checked = 2026-11-21
currency = "USD"
vcpu = 0.05
memory_gb = 0.005
machine_hours = { round = 2.0 }
"""


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """1,000 rows of 10 token ids. Some say how much they may generate, and one is no prompt."""
    lines = [json.dumps({"prompt": list(range(10)), "max_tokens": 50, "n": 2}) for _ in range(400)]
    lines += [json.dumps({"prompt": list(range(10))}) for _ in range(599)]
    lines.insert(500, "not json")
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "rows.jsonl")


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert dispatch(["plan", *flags, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_template_makes_the_prompts_that_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "hello", "number": 7}))
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "Say hello to 7"}))
    by_hand = planned(capsys, "--input", f"{tmp_path}/b.jsonl", "--tokens_per_second", "2")
    template = ["--template", "Say {text} to {number}"]
    made = planned(capsys, "--input", f"{tmp_path}/a.jsonl", "--tokens_per_second", "2", *template)
    assert made["input"]["unreadable"] == 0
    assert made["input"]["prompt_tokens"] == by_hand["input"]["prompt_tokens"] > 0


def test_a_system_message_is_counted_with_each_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "hello"}))
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": chat}))
    flags = ["--tokens_per_second", "2", "--n", "3", "--max_tokens", "10"]
    by_hand = planned(capsys, "--input", f"{tmp_path}/b.jsonl", *flags)["input"]
    made = planned(capsys, "--input", f"{tmp_path}/a.jsonl", "--system", "Be brief.", *flags)["input"]
    assert made["prompt_tokens"] == by_hand["prompt_tokens"] > 0
    assert made["generated_tokens"] == 30


def test_tokens_workers_hours_and_money_of_a_job(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    machine = ["--machine_type", "round", "--disk_size_gb", "50", "--prices", f"{tmp_path}/prices.toml"]
    time = ["--startup_minutes", "30", "--margin", "0.5", "--deadline", "90m"]
    plan = planned(capsys, "--input", rows, "--max_tokens", "10", "--tokens_per_second", "2", *machine, *time)
    found = plan["input"]
    assert (found["rows"], found["rows_exact"], found["unreadable"]) == (1000, True, 1)
    assert (found["prompt_tokens"], found["generated_tokens"]) == (9990, 400 * 100 + 599 * 10)
    # 45,990 / 2 tokens/s × 1.5 = 34,492.5 s = 9.58 h of one worker, in the hour that is left: 10 workers
    (estimate,) = plan["estimates"]
    assert estimate["workers"] == 10
    of_one = Fraction("34492.5") / 3600
    assert estimate["hours"] == float(Fraction(1, 2) + of_one / 10)
    assert estimate["worker_hours"] == float(5 + of_one)
    assert estimate["price"] == 2 * estimate["worker_hours"]
    assert (plan["currency"], plan["prices_checked"]) == ("USD", "2026-11-21")


def test_workers_that_are_preempted_start_again_and_more_of_them_meet_a_deadline(
    rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--input", rows, "--max_tokens", "10", "--tokens_per_second", "2", "--margin", "0.5"]
    asked += ["--startup_minutes", "30", "--deadline", "90m"]
    kept = planned(capsys, *asked)
    taken = planned(capsys, *asked, "--preemptions_per_hour", "0.4")
    assert (kept["preemptions_per_hour"], taken["preemptions_per_hour"]) == (0, 0.4)
    assert "no worker is preempted" in kept["assumptions"]
    assert any("is preempted 0.4 times an hour and replaced" in each for each in taken["assumptions"])
    # 9.58 h of one worker, and half an hour more for each 2.5 hours: 11.5 h, in the hour that is left
    assert [plan["estimates"][0]["workers"] for plan in (kept, taken)] == [10, 12]


def test_a_sample_stands_for_all_rows_and_says_how_well(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "--input", rows, "--sample", "100", "--tokens_per_second", "100", "--workers", "1")
    found = plan["input"]
    assert found["sampled"] == 100
    assert found["prompt_tokens"] == round(10 * (100 - found["unreadable"]) * 10)
    assert found["prompt_tokens_mean_error"] == 0
    assert any("the 100 rows that were counted stand for all" in each for each in plan["assumptions"])
    every = planned(capsys, "--input", rows, "--sample", "0", "--tokens_per_second", "100", "--workers", "1")
    assert every["input"]["sampled"] == 1000


def test_text_is_counted_by_the_models_tokenizer_and_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("What is the capital of Mexico?\n" * 5)
    flags = ["--input", f"{tmp_path}/a.txt", "--tokens_per_second", "1", "--workers", "1"]
    plain = planned(capsys, *flags, "--chat", "never")["input"]["prompt_tokens"]
    chat = planned(capsys, *flags)["input"]["prompt_tokens"]
    from millrace.model_manager.client.tokenizing import Tokenizer
    from millrace.model_manager.store import resolve

    tokenizer = Tokenizer.load(resolve("millrace-tiny"))
    assert plain == 5 * len(tokenizer.encode("What is the capital of Mexico?"))
    text = tokenizer.chat_text([{"role": "user", "content": "What is the capital of Mexico?"}])
    assert chat == 5 * len(tokenizer.encode(text, add_special_tokens=False))


def test_what_a_trial_generated_stands_for_what_the_job_will(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    trial = [json.dumps({"id": "a", "text": "", "usage": {"completion_tokens": n}}) for n in (4, 8)]
    (tmp_path / "c-00000.jsonl").write_text("\n".join(trial))
    flags = ["--input", rows, "--tokens_per_second", "1", "--workers", "1"]
    plan = planned(capsys, *flags, "--trial", f"{tmp_path}/c-*.jsonl")
    assert plan["input"]["generated_tokens"] == 999 * 6
    assert planned(capsys, *flags, "--output_tokens", "2.5")["input"]["generated_tokens"] == round(999 * 2.5)
    assert "exclude each other" in refused("plan", *flags, "--output_tokens", "2", "--trial", "x")


def test_the_speed_may_be_of_our_benchmarks_and_must_be_one(
    rows: str, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    results = str(ROOT / "benchmarks/results/pipeline.json")
    figures = json.loads(Path(results).read_text())["rows"]
    ours = next(row for row in figures if row["engine"] == "millrace-pipeline")
    where = ",".join(f"{name}={value}" for name, value in ours["match"].items())
    flags = ["--input", rows, "--workers", "1", "--results", results]
    plan = planned(capsys, *flags, "--where", f"{where},engine=millrace-pipeline")
    assert plan["worker"]["tokens_per_second"] == ours["tokens_per_s"]
    assert "engine=millrace-pipeline" in plan["worker"]["measured"]
    assert "beam-runinference-8, millrace-pipeline" in refused("plan", *flags, "--where", where)
    assert "picks 0 of" in refused("plan", *flags, "--where", "dtype=int3")


def test_without_a_question_it_is_a_ladder_for_the_machine_that_a_job_would_get(
    rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = str(ROOT / "deploy/dataflow/prices.example.toml")
    flags = ["--input", rows, "--tokens_per_second", "1", "--gpu", "l4", "--prices", prices]
    assert dispatch(["plan", *flags]) == 0
    shown = capsys.readouterr().out
    assert "worker   g2-standard-8 with 1 × l4, 60 GB of disk" in shown
    assert "1,000, 1 of 1,000 counted are no prompts" in " ".join(shown.split())
    assert "assumed: what rows generate is the most that max_tokens of rows and flags allow" in shown
    assert len([line for line in shown.splitlines() if line.strip()[:1].isdigit()]) > 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--input is missing"),
        (["--input", "ROWS"], "--tokens_per_second is missing"),
        (["--input", "ROWS", "--tokens_per_second", "1", "--deadline", "6"], "takes minutes, hours or days"),
        (["--input", "ROWS", "--tokens_per_second", "1", "--deadline", "5m"], "is not longer than a worker's start"),
        (["--input", "ROWS", "--tokens_per_second", "1", "--deadline", "1h", "--workers", "2"], "exclude each other"),
        (["--input", "ROWS", "--tokens_per_second", "0"], "--tokens_per_second 0: takes a number above 0"),
        (["--input", "ROWS", "--tokens_per_second", "1", "--workers", "-1"], "--workers -1: takes a number above 0"),
        (["--input", "ROWS", "--tokens_per_second", "1", "--margin", "-1"], "--margin -1: takes 0 or more"),
        (
            ["--input", "ROWS", "--tokens_per_second", "1", "--preemptions_per_hour", "nan"],
            "--preemptions_per_hour nan: takes 0 to 60",
        ),
        (["--input", "ROWS", "--max_tokens", "0"], "--max_tokens 0: takes"),
        (
            ["--input", "ROWS", "--tokens_per_second", "1", "--gpu", "l4", "--machine_type", "n2-standard-8"],
            "--machine_type n2-standard-8: --gpu l4 goes with machines of g2-…",
        ),
        (["--input", "ROWS", "--frobnicate"], "--frobnicate"),
    ],
)
def test_what_is_wrong_is_one_sentence(flags: list[str], sentence: str, rows: str, refused: Refused) -> None:
    assert sentence in refused("plan", *(rows if flag == "ROWS" else flag for flag in flags))


@pytest.mark.parametrize(
    ("flags", "assumed"),
    [
        (["--backend", "vllm", "--gpu", "l4"], "what vllm takes beside them is not known"),
        (["--backend", "vllm"], "vllm computes on CPUs, as there is no --gpu"),
        (["--endpoint", "http://host"], "a worker loads no model; what its servers do and cost is not in the figures"),
        (["--endpoint", "http://host", "--model", "gpt-4o", "--tokenizer", "millrace-tiny"], "a worker loads no model"),
    ],
)
def test_a_plan_says_what_it_does_not_know_of_another_engine(
    rows: str, flags: list[str], assumed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(capsys, "--input", rows, "--tokens_per_second", "2", *flags)
    assert any(assumed in each for each in plan["assumptions"])
    assert plan["worker"]["backend"] == ("vllm" if "vllm" in flags else "endpoint")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--backend", "vlm"], "--backend vlm: did you mean vllm?"),
        (["--backend", "openvino", "--gpu", "l4"], "--gpu l4: the back end openvino uses no NVIDIA GPU"),
        (["--backend", "llama_cpp"], "--model millrace-tiny: the back end llama_cpp takes a GGUF file"),
        (["--backend", "llama_cpp", "--model", "m.gguf"], "the tokenizer is in the file; --tokenizer takes a model in"),
        (
            ["--endpoint", "http://host", "--model", "gpt-4o"],
            "--tokenizer takes a model in safetensors format that has",
        ),
        (["--endpoint", "host"], "--endpoint 'host': takes http://, https://, grpc:// or grpcs:// URLs"),
    ],
)
def test_a_plan_refuses_what_an_engine_cannot(rows: str, flags: list[str], said: str, refused: Refused) -> None:
    assert said in refused("plan", "--input", rows, "--tokens_per_second", "2", *flags)

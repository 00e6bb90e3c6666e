"""The command that sets pipelines against their engines, with a fake side in the place of both."""

import argparse
import json
import sys
from pathlib import Path

import pytest

from benchmarks import engines
from benchmarks.duels import DUELS
from benchmarks.environments import InstalledEngine
from benchmarks.results import Row, read
from benchmarks.sides import Unsupported
from benchmarks.workload import TINY, make


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for made checkpoints: the fake does not read them."""
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / TINY).mkdir()
    (tmp_path / TINY / "tokenizer.json").touch()
    return tmp_path


def test_a_duel_is_kept_and_its_last_line_is_json(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "DUELS", {"fake": ("fake",)})
    results = checkpoints / "engines.json"
    flags = ["--shape", TINY, "--workload", TINY, "--rounds", "1", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["engines", *flags, "--checkpoints", str(checkpoints)])
    engines.main()
    shown = capsys.readouterr().out.splitlines()
    assert "tiny tiny int8: fake is left out: a fake has no int8" in shown
    assert [row["engine"] for row in json.loads(shown[-1])["rows"]] == ["fake"]
    assert [(row.engine, row.match.dtype) for row in read(results)] == [("fake", "bfloat16")]


def test_every_engine_meets_itself_on_long_workloads_in_both_shapes(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[argparse.Namespace] = []

    def run(arguments: argparse.Namespace, _keep: object) -> list[Row]:
        asked.append(arguments)
        return []

    monkeypatch.setattr(engines, "run", run)
    monkeypatch.setattr(sys, "argv", ["engines", "--shape", "opt-125m,qwen-0.5b", "--checkpoints", str(checkpoints)])
    engines.main()
    assert [each.engines for each in asked] == list(DUELS.values())
    assert {(tuple(each.shape), tuple(each.workload)) for each in asked} == {
        (("opt-125m", "qwen-0.5b"), ("skewed-x4", "uniform-x4"))
    }


def test_a_long_workload_is_another_one_four_times_over_with_other_prompts() -> None:
    once, longer = make("uniform", 32000), make("uniform-x4", 32000)
    assert longer[: len(once)] == once
    assert [item.num_output for item in longer] == [item.num_output for item in once] * 4
    assert len({tuple(item.prompt_token_ids) for item in longer}) == len(longer)


def test_an_engine_without_an_environment_is_left_out_with_the_command_that_makes_it(checkpoints: Path) -> None:
    assert not (checkpoints / "cache").exists()
    with pytest.raises(Unsupported, match="it is not installed: millrace engines install vllm"):
        InstalledEngine("vllm").python()

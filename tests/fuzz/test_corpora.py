"""The inputs that fuzzing has kept, given to the product again: none is a defect. tests/fuzz/__main__.py makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import corpora
from tests.fuzz.part import examine
from tests.fuzz.target import NAMES, Defect, Target, quiet_folder, target


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "cache"))
    with quiet_folder(tmp_path):
        yield


@pytest.mark.filterwarnings("ignore")  # libraries warn of what is odd in hostile files
@pytest.mark.parametrize("name", NAMES)
def test_no_kept_input_is_a_defect(name: str) -> None:
    chosen, inputs = target(name), corpora.kept(name)
    assert len(inputs) > 10
    for data in inputs:
        examine(chosen, data)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_is_fuzzed_for_more_than_no_time_and_the_record_says_so(name: str) -> None:
    assert corpora.record()[name]["seconds"] > 0


def test_an_input_that_takes_too_long_or_raises_is_a_defect() -> None:
    def run(data: bytes) -> None:
        if data:
            raise KeyError(data)

    quick = Target(run, lambda data, _source: data, [], seconds=0.0, memory=1)
    with pytest.raises(KeyError):
        examine(quick, b"a")
    with pytest.raises(Defect, match="processor time"):
        examine(quick, b"")


def test_the_inputs_that_are_kept_reach_all_lines_and_no_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "FOLDER", tmp_path)
    run = target("templates").run
    short, long, other = (
        b'{"template": "%s", "messages": [{"role": "user", "content": "x"}]}' % each
        for each in (b"a", b"aaa", b"{{ 9 ** 9 ** 9 }}")
    )
    assert corpora.keep("one", run, [long, other, short], were_defects=[long]) == 3
    assert corpora.kept("one") == sorted([short, long, other], key=lambda each: (each != long, corpora._digest(each)))
    assert corpora.keep("one", run, [long, short]) == 2, "what was a defect stays"
    assert corpora.kept("one") == [long, short]

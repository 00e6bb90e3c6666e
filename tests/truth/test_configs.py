"""Short ones of the check of random configs, and that it tells what differs."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tests.model_manager.engine.tested_models import MODELS
from tests.truth import configs
from tests.truth.config_draws import Draw, draw, each_alone

_CASES = {case.make.__name__: case for case in MODELS}


def _judged(name: str, **changes: Any) -> str:
    return configs.judged(Draw(_CASES[name], changes), random.Random(0))


def test_a_few_random_configs_are_answered_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert configs.main(["--count", "6", "--seed", "3"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("0 of 6 configs differ (")


def test_what_differs_is_told_with_its_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_answers = configs._answers

    def wrong(*arguments: Any) -> Any:
        return [[(token + 1) % 200 for token in tokens] for tokens in true_answers(*arguments)]

    monkeypatch.setattr(configs, "_answers", wrong)
    monkeypatch.setattr(configs, "draw", lambda *_: Draw(_CASES["llama_gqa"], {"rms_norm_eps": 0.1}))
    assert configs.main(["--count", "1"]) == 1
    drawn, how, last = capsys.readouterr().out.splitlines()
    assert drawn == 'llama_gqa {"rms_norm_eps": 0.1}'
    assert "differs" in how
    assert "from token 0 on" in how
    assert last == "1 of 1 configs differ (0 same, 0 refused, 0 not made)"


@pytest.mark.parametrize(
    ("name", "changes", "outcome"),
    [
        ("falcon_new_decoder", {"return_dict": False}, "same"),
        ("qwen2", {"is_causal": False}, "refused: .*is_causal=false"),
        ("llama_gqa", {"layer_types": ["sliding_attention"], "sliding_window": 16}, "refused: .*sliding_window=16"),
        ("qwen2_sliding_window", {"sliding_window": 9}, "same"),
        ("llama_gqa", {"hidden_act": "no such function"}, "not made: "),
    ],
)
def test_a_config_is_judged(name: str, changes: dict[str, Any], outcome: str) -> None:
    assert re.match(outcome, _judged(name, **changes))


def test_the_same_seed_draws_the_same() -> None:
    first, again = ([str(draw(random.Random(seed))) for seed in range(20)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 15


def test_each_field_of_a_class_is_tried() -> None:
    tried = {name for one in each_alone(_CASES["gemma"]) for name in one.changes}
    assert {"use_bidirectional_attention", "attention_bias", "head_dim", "rope_parameters", "is_causal"} <= tried
    assert not {"vocab_size", "eos_token_id"} & tried

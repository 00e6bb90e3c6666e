"""An answer as a response: items of text and of calls, whole or as typed events. Made of a chat completion's parts.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..openai.answers import usage_of
from ..openai.chat import ChatAnswer
from ..requests.exchanges import AnswerPart, End, Question
from ..requests.ids import new_id
from .conversation import ResponsesBody

_CUT = "length"


class ResponseAnswer:
    """One response; also a StreamedAnswers of endpoints.py."""

    def __init__(self, chat: ChatAnswer, fields: Mapping[str, Any], body: ResponsesBody, model: str) -> None:
        self._chat = chat
        self._body = body
        self.is_stream = body.stream
        self._fixed = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": fields.get("metadata", {}),
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": fields.get("temperature", 1.0),
            "text": body.text if isinstance(body.text, Mapping) else {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{"strict": None, "parameters": None, **each} for each in body.tools],
            "top_p": fields.get("top_p", 1.0),
            "truncation": "disabled",
        }
        self._events = ResponseEvents(self)

    @property
    def questions(self) -> list[Question]:
        """What is asked of the engine."""
        return self._chat.questions

    @property
    def ignored(self) -> dict[str, str]:
        """The header that names fields without effect."""
        return self._chat.ignored

    def begun(self) -> dict[str, Any]:
        """The response before anything is generated."""
        return {**self._fixed, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def whole(self, ends: Sequence[End]) -> dict[str, Any]:
        """The whole response."""
        choice = self._chat.whole(ends)["choices"][0]
        message, is_cut = choice["message"], choice["finish_reason"] == _CUT
        items = []
        if message.get("content"):
            logprobs = (choice.get("logprobs") or {}).get("content")
            items.append(message_item(_new("msg"), message["content"], _status(is_cut), logprobs))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            items.append(
                call_item(_new("fc"), call["id"], function["name"], function["arguments"], status=_status(is_cut))
            )
        return self.ended(items or [message_item(_new("msg"), "", _status(is_cut))], ends, is_cut=is_cut)

    def ended(self, items: list[dict[str, Any]], ends: Sequence[End], *, is_cut: bool) -> dict[str, Any]:
        """The response with its items; `is_cut`: the tokens were used up."""
        details = {"reason": "max_output_tokens"} if is_cut else None
        ending = {"status": _status(is_cut), "incomplete_details": details}
        return {**self._fixed, **ending, "output": items, "usage": _usage(ends)}

    def first_parts(self) -> list[dict[str, Any]]:
        """Events before there is a token."""
        return self._events.first()

    def parts(self, event: AnswerPart | End) -> Iterator[dict[str, Any]]:
        """Events for what has come."""
        for chunk in self._chat.parts(event):
            for choice in chunk["choices"]:
                yield from self._events.of(choice)

    def last_parts(self, ends: Sequence[End]) -> list[dict[str, Any]]:
        """Events of the end."""
        return [*self._events.last(ends)]


class ResponseEvents:
    """The typed events of a stream, numbered, of the parts of a streamed chat completion."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._number = 0
        self._items: list[dict[str, Any]] = []
        """The items so far; the last one may be open."""
        self._logprobs: list[Any] = []
        self._untold: list[Any] = []
        """Log-probabilities of tokens whose text is not there yet; of a call nothing comes of them."""
        self._is_open = False
        self._is_cut = False

    def first(self) -> list[dict[str, Any]]:
        """Events of the answer's beginning."""
        begun = self._answer.begun()
        return [self._event("response.created", response=begun), self._event("response.in_progress", response=begun)]

    def of(self, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Events of one part of the answer."""
        delta = choice["delta"]
        self._untold += (choice.get("logprobs") or {}).get("content") or []
        if delta.get("content"):
            told, self._untold = self._untold, []
            yield from self._text(delta["content"], told)
        for call in delta.get("tool_calls") or ():
            yield from self._call(call)
        self._is_cut = self._is_cut or choice["finish_reason"] == _CUT

    def last(self, ends: Sequence[End]) -> Iterator[dict[str, Any]]:
        """Events of the answer's end."""
        if not self._items:
            yield from self._open(message_item(_new("msg"), "", "in_progress"))
        yield from self._close(is_last=True)
        whole = self._answer.ended(self._items, ends, is_cut=self._is_cut)
        yield self._event("response.incomplete" if self._is_cut else "response.completed", response=whole)

    def _text(self, text: str, logprobs: list[Any]) -> Iterator[dict[str, Any]]:
        if not self._is_open or self._items[-1]["type"] != "message":
            yield from self._open(message_item(_new("msg"), "", "in_progress"))
        self._items[-1]["content"][0]["text"] += text
        self._logprobs += logprobs
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}
        yield self._event("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _call(self, call: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        function = call["function"]
        if function.get("name") is not None:
            yield from self._open(call_item(_new("fc"), call["id"], function["name"], "", status="in_progress"))
        if arguments := function.get("arguments"):
            self._items[-1]["arguments"] += arguments
            place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
            yield self._event("response.function_call_arguments.delta", **place, delta=arguments)

    def _open(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A new item; the one before it is whole."""
        yield from self._close(is_last=False)
        self._items.append(item)
        self._is_open = True
        shown = {**item, "content": []} if item["type"] == "message" else {**item}
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": len(self._items) - 1, "content_index": 0}
            part = {**item["content"][0]}
            yield self._event("response.content_part.added", **place, part=part)

    def _close(self, *, is_last: bool) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        item["status"] = _status(self._is_cut and is_last)
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        if item["type"] == "message":
            part, place = item["content"][0], {**place, "content_index": 0}
            part["logprobs"] = self._logprobs
            yield self._event("response.output_text.done", **place, text=part["text"], logprobs=self._logprobs)
            yield self._event("response.content_part.done", **place, part=part)
        else:
            said = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **place, **said)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def message_item(item_id: str, text: str, status: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """A message of one text."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}


def call_item(item_id: str, call_id: str, name: str, arguments: str, *, status: str) -> dict[str, Any]:
    """A call of a function."""
    call = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": item_id, "type": "function_call", "status": status, **call}


def _usage(ends: Sequence[End]) -> dict[str, Any]:
    used = usage_of(ends)
    return {
        "input_tokens": used["prompt_tokens"],
        "input_tokens_details": {**used["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": used["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used["total_tokens"],
    }


def _status(is_cut: bool) -> str:
    return "incomplete" if is_cut else "completed"


def _new(prefix: str) -> str:
    return new_id(f"{prefix}_")

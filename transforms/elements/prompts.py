"""Elements that Generate takes, and the Prompt that each stands for."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from millrace.model_manager.wire.chat_messages import parse_messages
from millrace.model_manager.wire.errors import InvalidRequest, RequestError
from millrace.model_manager.wire.json_text import canonical
from millrace.model_manager.wire.sampling import SamplingParams

from .completions import DeadLetter, Prompt, content_id
from .prompt_rows import RowShape, check_depth, document_wanted, given_id, parse_row, text_prompt, too_deep


def split_key(element: Any) -> tuple[tuple[Any, ...], Any]:
    """((key,), prompt) of keyed input, which is any pair without names for its two; else ((), prompt)."""
    if isinstance(element, tuple) and len(element) == 2 and not hasattr(element, "_fields"):
        return (element[0],), element[1]
    return (), element


def as_prompt(value: Any, shape: RowShape | None = None) -> Prompt:
    """A Prompt, text, list of messages, list of token ids, or mapping that is a row of that shape; raises
    InvalidRequest.

    A prompt without an id gets the id of its content.
    """
    check_depth(value)
    prompt = _prompt(_plain(value), shape or RowShape())
    _check_json(prompt)
    return prompt if prompt.id else msgspec.structs.replace(prompt, id=prompt.content_id)


def seeded(params: SamplingParams, prompt: Prompt) -> SamplingParams:
    """The parameters, with a seed derived from the prompt's id if that is the user's own.

    Such a row has the same samples in each job. The engine seeds others by their requests' ids, which are the job's.
    """
    if params.seed is not None or params.temperature == 0 or prompt.id in (prompt.source, prompt.content_id):
        return params
    digest = hashlib.sha256(prompt.id.encode("utf-8", "surrogatepass")).digest()
    return msgspec.structs.replace(params, seed=int.from_bytes(digest[:8], "little") >> 1)


def unusable_dead_letter(value: Any, error: RequestError) -> DeadLetter:
    """The dead letter of an element that is no valid prompt. Its id is the row's, else a hash of the row's content."""
    row = _shown(value)
    identity = given_id(value, RowShape()) or content_id(row)
    return DeadLetter(id=identity, error=type(error).__name__, reason=str(error), row=row)


def _shown(value: Any) -> Any:
    """The value where it can be written as JSON, as dead letters are."""
    if too_deep(value):
        return f"a {type(value).__name__} that is nested too deeply"
    try:
        canonical(value)
    except (TypeError, ValueError):
        return repr(value)
    return value if isinstance(value, str | dict | list) else repr(value)


def _plain(value: Any) -> Any:
    """The value, with numpy's scalars and arrays, which JSON does not have, turned into Python's."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _check_json(prompt: Prompt) -> None:
    """Raises InvalidRequest, by the column's name, for what cannot be written as JSON: surrogates, objects."""
    for name, value in {"the prompt": [prompt.id, prompt.content], **prompt.columns}.items():
        try:
            canonical({name: value})
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name}: takes what JSON has: {error}") from None


def _prompt(value: Any, shape: RowShape) -> Prompt:
    if isinstance(value, Prompt):
        return value
    if isinstance(value, str):
        return text_prompt(value, shape, position="")
    if isinstance(value, dict):
        return parse_row(value, shape, position="")
    if shape.documents:
        raise InvalidRequest(f"an element of type {type(value).__name__}: takes {document_wanted(shape)}")
    if shape.template is not None:
        raise InvalidRequest(f"an element of type {type(value).__name__}: a template takes text or a row as a mapping")
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return Prompt(token_ids=value)
    if isinstance(value, list):
        return Prompt(messages=[*parse_messages(value)])
    raise InvalidRequest(
        f"an element of type {type(value).__name__}: takes a Prompt, text, messages, token ids, or a row as a mapping"
    )

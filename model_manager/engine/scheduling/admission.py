"""Checks that a request can run, and makes its sequence. Knows requests; not who runs when."""

from __future__ import annotations

from collections.abc import Container

from ...wire.errors import InvalidRequest, PromptTooLong, counted
from ...wire.request import Request
from .sequence import Sequence
from .stopping import StopRules


def admitted(
    request: Request,
    *,
    vocab_size: int,
    max_len: int,
    stop_rules: StopRules,
    known: Container[object],
    now: float,
    order: int = 0,
    prefix_caching: bool = True,
) -> Sequence:
    """The sequence of a request that can run; `known` are the ids that are queued or running.

    Raises InvalidRequest or PromptTooLong, naming what was given and what is taken.
    """
    _check_tokens(request, vocab_size)
    _check_length(request, max_len)
    if request.task == "score" and not 1 <= request.score_from < len(request.prompt_token_ids):
        most = len(request.prompt_token_ids) - 1
        raise InvalidRequest(f"score_from={request.score_from}: takes 1 to {most}, the index of a token after another")
    if request.params.n != 1:
        raise InvalidRequest(f"n={request.params.n}: an engine takes 1; its client sends a request for each answer")
    if bool(request.params.adapter) != (request.adapter is not None):
        raise InvalidRequest(f"adapter={request.params.adapter!r}: takes one that its client has resolved")
    if request.request_id in known:
        raise InvalidRequest(f"request_id={request.request_id!r}: is running already")
    most = min(request.params.max_tokens, max_len - len(request.prompt_token_ids))
    conditions = stop_rules.conditions(request.params, most)
    rules = stop_rules.token_rules(request.params, vocab_size)
    return Sequence(request, conditions, rules, now=now, order=order, prefix_caching=prefix_caching)


def _check_tokens(request: Request, vocab_size: int) -> None:
    if not request.prompt_token_ids:
        raise InvalidRequest("prompt: has no tokens; at least 1 is needed")
    for name, ids in (("prompt", request.prompt_token_ids), ("output", request.output_token_ids)):
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise InvalidRequest(f"{name}: token ids {min(ids)} to {max(ids)}; the model's are 0 to {vocab_size - 1}")
    if request.params.logprobs is not None and len(request.output_logprobs or ()) != len(request.output_token_ids):
        raise InvalidRequest("output: has tokens without the log-probabilities that are asked for")


def _check_length(request: Request, max_len: int) -> None:
    count = len(request.prompt_token_ids)
    given = counted(count, "token")
    if request.task == "generate" and count + 1 > max_len:
        raise PromptTooLong(
            f"prompt of {given}: prompt and output together take at most {max_len}, at least 1 for output"
        )
    if count > max_len:
        raise PromptTooLong(f"{request.task} of {given}: takes at most {max_len}")

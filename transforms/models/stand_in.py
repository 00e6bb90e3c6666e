"""A client that answers by itself: at the seam of the tests and of dry runs of a graph. No model, no other process.

It answers each prompt with its words in capitals, one token a word, in a thread of its own.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from millrace.model_manager.wire.errors import MillraceError, PromptTooLong
from millrace.model_manager.wire.logprobs import Logprobs, TokenLogprob
from millrace.model_manager.wire.request import FinishReason, Output, Pooling
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.shared_settings import UnmetSetting
from millrace.model_manager.wire.status import ModelInfo
from millrace.model_manager.wire.timings import Timings

from .client import ClientOptions, Content

_TIMINGS = Timings(queued=0.001, first_token=0.002, finished=0.003)


def stand_in_output(prompt_tokens: int, token_ids: Sequence[int] = (), **said: Any) -> Output:
    """An answer as an engine gives it, made up."""
    reason = said.pop("finish_reason", FinishReason.STOP)
    return Output("", list(token_ids), reason, _TIMINGS, prompt_tokens, latency=0.004, **said)


class StandInClient:
    """Capitals, at once; as many at a time as `max_num_seqs`, and no prompt over `max_model_len` words."""

    unmet: Sequence[UnmetSetting] = ()

    def __init__(self, options: ClientOptions) -> None:
        model = options.model
        self.info = ModelInfo(
            name=model.model,
            folder="",
            architecture="StandIn",
            dtype="float32",
            device="cpu",
            vocab_size=2**31 - 1,
            max_model_len=model.max_model_len or 1024,
            max_num_seqs=model.max_num_seqs,
            num_blocks=1,
            block_size=model.block_size,
            eos_token_ids=[],
            load_seconds=0.0,
            revision=model.revision or "",
        )
        self.model, self.key = model.model, model.key
        self._credits = threading.BoundedSemaphore(model.max_num_seqs)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="stand-in")

    def submit(
        self,
        prompt: Content,
        params: SamplingParams,
        *,
        request_id: str,  # noqa: ARG002
        may_be_cut: bool = False,  # noqa: ARG002
    ) -> Future[Any]:
        """See Client."""
        words = self._checked(prompt)
        return self._start(lambda: self._complete(words, params))

    def score(
        self,
        prompt: Content,
        continuations: Sequence[str | list[int]],
        params: SamplingParams,  # noqa: ARG002
        *,
        request_id: str,  # noqa: ARG002
    ) -> Future[Any]:
        """See Client: a word's log-probability is minus its length, and none but "yes" is the likeliest."""
        words = self._checked(prompt)
        return self._start(lambda: [self._scored(words, _words(continuation)) for continuation in continuations])

    def embed(
        self,
        prompt: Content,
        params: SamplingParams,  # noqa: ARG002
        *,
        request_id: str,  # noqa: ARG002
        pooling: Pooling,
        normalize: bool,
    ) -> Future[Any]:
        """See Client: the vector says how many words there are, and what was asked for."""
        words = self._checked(prompt)
        vector = struct.pack("<3f", len(words), pooling == "mean", normalize)
        return self._start(lambda: stand_in_output(len(words), embedding=vector))

    def _checked(self, prompt: Content) -> list[str]:
        words = _words(prompt)
        if len(words) >= self.info.max_model_len:
            raise PromptTooLong(f"{len(words)} tokens leave none of the model's {self.info.max_model_len} positions")
        return words

    def _start(self, make: Callable[[], Any]) -> Future[Any]:
        self._credits.acquire()
        future: Future[Any] = Future()
        future.add_done_callback(lambda _: self._credits.release())
        self._pool.submit(self._finish, future, make)
        return future

    def _scored(self, context: list[str], words: list[str]) -> Output:
        self.complete(context, SamplingParams())
        scored = Logprobs(
            [-float(len(word)) for word in words],
            [word == "yes" for word in words],
            token_ids=[sum(word.encode()) for word in words],
        )
        return stand_in_output(len(context) + len(words), prompt_logprobs=scored)

    def _finish(self, future: Future[Any], make: Callable[[], Any]) -> None:
        try:
            result = make()
        except MillraceError as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(result)

    def _complete(self, words: list[str], params: SamplingParams) -> Output:
        first = self.complete(words, params)
        return first if params.n == 1 else msgspec.structs.replace(first, choices=(first,) * params.n)

    def complete(self, words: list[str], params: SamplingParams) -> Output:
        """Runs in a thread of the pool; what it raises is the request's failure."""
        kept = words[: params.max_tokens]
        reason = FinishReason.STOP if len(kept) == len(words) else FinishReason.LENGTH
        token_ids = [sum(word.encode()) for word in kept]
        certain = [TokenLogprob(word, token_id, 0.0, []) for word, token_id in zip(kept, token_ids, strict=True)]
        return stand_in_output(
            len(words),
            token_ids,
            text=" ".join(kept).upper(),
            finish_reason=reason,
            logprobs=None if params.logprobs is None else Logprobs([], [], tokens=certain),
        )

    def retire(self) -> None:
        """See Client; nobody waits here for long."""

    def close(self) -> None:
        """See Client."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _words(prompt: Content) -> list[str]:
    if isinstance(prompt, str):
        return prompt.split()
    return [word for item in prompt for word in (item["content"] if isinstance(item, dict) else str(item)).split()]

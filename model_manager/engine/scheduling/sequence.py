"""A request inside the engine: its tokens, how far they are computed, and the blocks that hold them.

Knows one request; not the batch, nor who decides what runs.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Container

import msgspec

from model_manager.engine.reading import EmbedReading, ScoreReading, reading_of
from model_manager.engine.sampling.token_rules import TokenRules
from model_manager.engine.scheduling.acceptance import Acceptance
from model_manager.engine.scheduling.stopping import Ending, StopConditions, StopRules
from model_manager.wire.errors import DeadlineExceeded, InvalidRequest, PromptTooLong
from model_manager.wire.logprobs import Logprobs
from model_manager.wire.messages import Failure, FinishReason, Output, Request, Timings


class SequenceStatus(enum.Enum):
    """Where a sequence stands; the scheduler alone moves it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One request's state.

    `token_ids` holds prompt and output; the first `num_computed_tokens` of them have their keys and values in the
    blocks of `block_table`; `num_draft_computed_tokens` is the same of a draft model's cache, drafts included. A
    running sequence always has at least one token that is not computed yet. `num_pending_tokens` more follow
    `token_ids`: the device is sampling them, or has; the last is row `pending_row` of what its step samples.

    `rank` is its place in line, smaller first; `overtaken` counts those behind it that began to run before it.
    `adapter_slot` is where its adapter is loaded, -1 without one or while it is not.
    Sequences share blocks if their `cache_key` is the same; one whose key is empty shares with none.
    """

    __slots__ = (
        "_waited",
        "acceptance",
        "adapter",
        "adapter_slot",
        "added_at",
        "block_digests",
        "block_table",
        "cache_key",
        "cached_tokens",
        "conditions",
        "deadline",
        "ending",
        "first_token_at",
        "logprobs",
        "num_blocks_seen",
        "num_committed_blocks",
        "num_computed_tokens",
        "num_draft_computed_tokens",
        "num_pending_tokens",
        "num_prompt_tokens",
        "overtaken",
        "params",
        "pending_row",
        "rank",
        "reading",
        "request_id",
        "row",
        "rules",
        "scheduled_at",
        "seed",
        "status",
        "task",
        "token_ids",
    )

    def __init__(
        self,
        request: Request,
        conditions: StopConditions,
        rules: TokenRules | None = None,
        *,
        now: float,
        order: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        """`now` in seconds, on the clock of every later reading; `order` grows with each arrival.

        `prefix_caching`: whether blocks may be shared beyond the request's family. The request's output tokens count
        as generated already: they may end it at once.
        """
        self.request_id = request.request_id
        self.task = request.task
        self.params = request.params
        self.adapter = request.adapter
        self.adapter_slot = -1
        self.reading = reading_of(request)
        self.seed = sampling_seed(request)
        self.conditions = conditions
        self.rules = rules
        self.rank = (request.params.priority, order)
        self.overtaken = 0
        self.status = SequenceStatus.WAITING
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.token_ids = list(request.prompt_token_ids)
        self.ending: Ending | None = None
        self.logprobs = [] if request.output_logprobs is None else [request.output_logprobs]
        self.num_computed_tokens = 0
        self.num_draft_computed_tokens = 0
        self.num_pending_tokens = 0
        self.pending_row = -1
        self.num_committed_blocks = 0
        self.block_table: list[int] = []
        self.cache_key = cache_key(request, prefix_caching)
        self.block_digests: list[bytes] = []
        self.num_blocks_seen = 0
        self.row = -1
        self.acceptance = Acceptance()
        self.cached_tokens: int | None = None
        self.deadline = deadline(request, now)
        self.added_at = now
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self._waited = request.waited
        for token_id in request.output_token_ids:
            if self.ending is None:
                self.append(token_id)

    @property
    def generates(self) -> bool:
        """Whether tokens are sampled after those it has."""
        return self.task == "generate" and self.ending is None

    @property
    def lacks_adapter(self) -> bool:
        """Whether it cannot run for an adapter that is not loaded."""
        return self.adapter is not None and self.adapter_slot < 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to compute for it."""
        return self.ending is not None and (self.reading is None or self.reading.done)

    def close(self) -> None:
        """Everything is computed: what does not generate ends with that."""
        self.ending = self.ending or Ending(FinishReason.STOP)

    @property
    def is_sound(self) -> bool:
        """Whether nothing that was read off its prompt is NaN or infinite."""
        return self.reading is None or self.reading.finite

    @property
    def num_reusable_tokens(self) -> int:
        """The most tokens that may come out of the prefix cache: the last one gives the logits, some are read."""
        most = len(self.token_ids) - 1
        return most if self.reading is None or self.reading.done else min(most, self.reading.next)

    @property
    def num_tokens(self) -> int:
        """Prompt and output, those pending included."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_output_tokens(self) -> int:
        """Generated so far, by this engine or by one before it."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed: 1 when decoding, more in prefill."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_settled_tokens(self) -> int:
        """Tokens that are computed and known to be sound: not what follows from a pending one."""
        return self.num_computed_tokens - self.num_pending_tokens

    @property
    def ends_with_pending(self) -> bool:
        """Whether it may have no token beyond those that are pending."""
        return self.num_pending_tokens > 0 and self.num_tokens - self.num_prompt_tokens >= self.conditions.max_tokens

    @property
    def samples_by_history(self) -> bool:
        """Whether which token comes next depends on what the tokens before it are, beyond the logits."""
        params = self.params
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        return penalised or (self.rules is not None and bool(self.rules.bad_words))

    def await_token(self, row: int) -> None:
        """One is being sampled on the device, as that row of a step's."""
        self.num_pending_tokens += 1
        self.pending_row = row

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token_id: int, logprobs: Logprobs | None = None) -> Ending | None:
        """Take a generated token, with its log-probabilities where they are asked for; returns (and keeps) the ending
        that it brings about.
        """
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self.ending = self.conditions.after(token_id, self.num_output_tokens)
        return self.ending

    def answer(self, now: float) -> Output | Failure:
        """The ended request: its output, or that there is none because its time was up before its first token."""
        assert self.ending is not None
        if self.ending.reason is FinishReason.DEADLINE and not self.num_output_tokens:
            late = DeadlineExceeded(f"no token after deadline={self.params.deadline} seconds")
            return Failure(self.request_id, late.info())
        return self.output(now)

    def output(self, now: float) -> Output:
        """The finished request; what it never reached is timed as happening now."""
        assert self.ending is not None
        reading = self.reading if self.reading is not None and self.reading.done else None
        return Output(
            request_id=self.request_id,
            token_ids=self.output_token_ids,
            finish_reason=self.ending.reason,
            stop_reason=self.ending.matched,
            logprobs=self._all_logprobs(),
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.cached_tokens or 0,
            prompt_logprobs=reading.result() if isinstance(reading, ScoreReading) else None,
            embedding=reading.result() if isinstance(reading, EmbedReading) else None,
            timings=Timings(
                queued=self._since_receipt(self.scheduled_at, now),
                first_token=self._since_receipt(self.first_token_at, now),
                finished=self._since_receipt(now, now),
            ),
        )

    def _all_logprobs(self) -> Logprobs | None:
        """One entry for each output token, where the request asks for them."""
        return None if self.params.logprobs is None else Logprobs.join(self.logprobs).first(self.num_output_tokens)

    def _since_receipt(self, event: float | None, now: float) -> float:
        return self._waited + (now if event is None else event) - self.added_at


def sampling_seed(request: Request) -> int:
    """The request's own seed, or one that is always the same for its id, so that a retry gives the same text."""
    if request.params.seed is not None:
        return request.params.seed
    digest = hashlib.blake2b(request.request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def deadline(request: Request, now: float) -> float | None:
    """When the request's time is up, on the clock of `now`."""
    seconds = request.params.deadline
    return None if seconds is None else now - request.waited + seconds


def cache_key(request: Request, prefix_caching: bool) -> bytes:
    """What must be equal, beside the tokens, for keys and values to be shared: the root of the digests of blocks.

    Without prefix caching a family shares all the same, and a lone request with none (empty).
    """
    if not prefix_caching and not request.family:
        return b""
    among = ("salt", request.params.cache_salt) if prefix_caching else ("family", request.family)
    adapter = request.adapter
    shared = among if adapter is None else (*among, "adapter", adapter.name, adapter.digest)
    return hashlib.blake2b(msgspec.msgpack.encode(shared), digest_size=32).digest()


def accepted(
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
    if request.task == "generate" and count + 1 > max_len:
        raise PromptTooLong(
            f"prompt of {count} tokens: prompt and output together take at most {max_len}, at least 1 for output"
        )
    if count > max_len:
        raise PromptTooLong(f"{request.task} of {count} tokens: takes at most {max_len}")

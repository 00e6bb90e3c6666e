"""A request inside the engine: its tokens, how far they are computed, and the blocks that hold them.

Knows one request; not the batch, nor who decides what runs.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from ...grammars.closing import Closed
from ...grammars.guide import Guide
from ...wire.errors import DeadlineExceeded, RequestError, not_complete
from ...wire.logprobs import Logprobs
from ...wire.request import Failure, FinishReason, Output, Request
from ...wire.timings import Timings
from ..sampling.token_rules import TokenRules
from .acceptance import Acceptance
from .readings import EmbedReading, ScoreReading, reading_of
from .stopping import Ending, StopConditions

QueueRank = tuple[int, int]
"""A place in line, smaller first: the request's priority, then its arrival."""


class SequenceStatus(enum.Enum):
    """A sequence's status; only the scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of replaying `given`: the tokens that earlier engines generated for the request."""

    guide: Guide | None
    """The guide after these tokens."""
    token_ids: list[int]
    """The tokens up to the one that ends the sequence."""
    ending: Ending | None
    closed: Closed | None = None
    """How the output is closed, if the budget has cut it."""


class Sequence:
    """One request's state.

    `token_ids` holds prompt and output; the first `num_computed_tokens` of them have their keys and values in the
    blocks of `block_table`; `num_draft_computed_tokens` is the same for a draft model's cache, drafts included. A
    running sequence that is not held has at least one token that is not computed yet. `num_pending_tokens` more tokens
    follow `token_ids`: the device samples or has sampled them, and the host does not know them yet. The last of them is
    row `pending_row` of its step's samples.

    `rank` is its place in the queue, smaller first. `overtaken` counts the sequences behind it that began to run before
    it. `has_preempted`: True once a running sequence has made way for it. A sequence with a constraint has a `guide`
    before it runs. `is_held`: True while it runs but sits out steps, until a slow constraint has gone on; all its
    tokens are computed. `given` are output tokens of the request that were not replayed yet. `loaded_adapters` are the
    slots of all loaded adapters, by digest, once its own was asked for. Sequences with the same `cache_key` share
    blocks; an empty key shares with none.
    """

    loaded_adapters: Mapping[str, int] = MappingProxyType({})
    overtaken = 0
    overtaken_before = 0
    """`overtaken` when it was promoted."""
    has_preempted = False
    turn_ends: int | None = None
    """How many tokens it has when its promotion ends, if it is promoted (promotion.py)."""
    status = SequenceStatus.WAITING
    ending: Ending | None = None
    num_own_tokens: int | None = None
    """How many tokens of a closed output are the model's."""
    num_computed_tokens = 0
    num_dropped_tokens = 0
    """Computed before it was preempted; 0 once it runs again."""
    num_recomputed_tokens = 0
    num_draft_computed_tokens = 0
    num_pending_tokens = 0
    pending_row = -1
    is_held = False
    num_committed_blocks = 0
    num_blocks_seen = 0
    row = -1
    cached_tokens: int | None = None
    scheduled_at: float | None = None
    first_token_at: float | None = None
    guide: Guide | None = None

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

        `prefix_caching`: True if the sequence may share blocks with requests outside its family (`Request.family`). The
        request's output tokens count as generated already: they may end it at once.
        """
        self.request_id = request.request_id
        self.task = request.task
        self.params = request.params
        self.adapter = request.adapter
        self.reading = reading_of(request)
        self.seed = sampling_seed(request)
        self.conditions = conditions
        self.rules = rules
        self.rank = (request.params.priority, order)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.token_ids = list(request.prompt_token_ids)
        self.logprobs = [] if request.output_logprobs is None else [request.output_logprobs]
        self.block_table: list[int] = []
        self.cache_key = cache_key(request, prefix_caching)
        self.block_digests: list[bytes] = []
        self.acceptance = Acceptance()
        self.deadline = deadline(request, now)
        self.added_at = now
        self._waited = request.waited
        self._num_lasting = request.num_lasting if request.stream else 0
        self.may_be_cut = request.may_be_cut
        """An output that its budget cuts is an answer, whatever its constraint says."""
        self.given = list(request.output_token_ids)
        if self.params.constraint is None:
            self.adopt(self.replayed(None))

    @property
    def generates(self) -> bool:
        """True if tokens are sampled after its own."""
        return self.task == "generate" and self.ending is None

    @property
    def is_to_be_closed(self) -> bool:
        """True if its budget has cut the output, which is no answer like that."""
        return self.ending is not None and self.ending.is_cut and not self.may_be_cut

    @property
    def adapter_slot(self) -> int:
        """The slot of its adapter, -1 without an adapter or while it is not loaded."""
        return -1 if self.adapter is None else self.loaded_adapters.get(self.adapter.digest, -1)

    @property
    def lacks_adapter(self) -> bool:
        """True if it waits for an adapter that is not loaded."""
        return self.adapter is not None and self.adapter_slot < 0

    @property
    def is_over(self) -> bool:
        """True if nothing is left to compute for it."""
        return self.ending is not None and (self.reading is None or self.reading.done)

    def close(self) -> None:
        """End a sequence that does not generate, once everything is computed."""
        self.ending = self.ending or Ending(FinishReason.STOP)

    @property
    def is_sound(self) -> bool:
        """True if no value that was read off its prompt is NaN or infinite."""
        return self.reading is None or self.reading.finite

    @property
    def num_reusable_tokens(self) -> int:
        """Most tokens that may come from the prefix cache. The last token is always computed, for its logits, and so
        are the tokens that are still to be read.
        """
        most = len(self.token_ids) - 1
        return most if self.reading is None or self.reading.done else min(most, self.reading.next)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output, pending ones included."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, by this engine or an earlier one."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed: 1 when decoding, more in prefill."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_settled_tokens(self) -> int:
        """Tokens that are computed and known to be finite: none after a pending one."""
        return self.num_computed_tokens - self.num_pending_tokens

    @property
    def ends_with_pending(self) -> bool:
        """True if it may have no token after the pending ones."""
        return self.num_pending_tokens > 0 and self.num_tokens - self.num_prompt_tokens >= self.conditions.max_tokens

    @property
    def samples_by_history(self) -> bool:
        """True if the next token depends on earlier tokens, beyond the logits."""
        params = self.params
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        return penalised or self.guide is not None or (self.rules is not None and bool(self.rules.bad_words))

    @property
    def certain_tokens(self) -> list[int]:
        """The tokens that its constraint forces next, as many as it may have; none if taking them may be slow."""
        if self.guide is None or self.guide.is_slow:
            return []
        return self.guide.certain[: self.conditions.max_tokens - self.num_output_tokens]

    @property
    def is_asked_of_each_token(self) -> bool:
        """True if the logits of every token are needed, even of a token that the constraint forces."""
        reads = self.reading is not None and not self.reading.done
        return reads or self.params.logprobs is not None or self.rules is not None

    def await_token(self, row: int) -> None:
        """Note that the device samples a token, as this row of a step."""
        self.num_pending_tokens += 1
        self.pending_row = row

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens, including given ones that are not replayed yet."""
        return self.token_ids[self.num_prompt_tokens :] + self.given

    def replayed(self, guide: Guide | None) -> Replayed:
        """Replay the given tokens; raises ConstraintNotMet if the grammar does not allow them.

        Any one thread may call this: it changes nothing that matters to a sequence that ends meanwhile.
        """
        for count, token_id in enumerate(self.given, 1):
            if guide is not None:
                guide.take_again(token_id)
            ending = self.conditions.after(token_id, count, guide)
            if ending is not None:
                return Replayed(guide, self.given[:count], ending, self._way_out(guide, ending))
        return Replayed(guide, self.given, None)

    def closing(self) -> Replayed:
        """How to close an output that the budget has cut; for any one thread, as `replayed`."""
        return Replayed(self.guide, [], self.ending, self._way_out(self.guide, self.ending))

    def adopt(self, replayed: Replayed) -> None:
        """Take over the result of `replayed` (tokens, guide, ending) or of `closing` (the closed output)."""
        self.guide, self.ending = replayed.guide, replayed.ending
        self.token_ids += replayed.token_ids
        self.given = []
        if replayed.closed is not None and self.ending is not None:
            self.num_own_tokens = replayed.closed.num_kept
            self.token_ids[self.num_prompt_tokens + self.num_own_tokens :] = replayed.closed.way
            self.ending = replace(self.ending, is_cut=False)

    def _way_out(self, guide: Guide | None, ending: Ending | None) -> Closed | None:
        """How to close an output that the budget has cut; None if that is not needed or not possible.

        The tokens that close an output are not the model's. They have no log-probabilities and may be forbidden or stop
        tokens, so a request with such parameters is not closed. What a stream may have shown is not replaced.
        """
        says_more = self.params.logprobs is not None or self.rules is not None or self.params.stop
        if guide is None or ending is None or not ending.is_cut or self.may_be_cut or says_more:
            return None
        return guide.closed(self.conditions.max_tokens, self._num_lasting)

    def append(self, token_id: int, logprobs: Logprobs | None = None) -> Ending | None:
        """Add a generated token, with its log-probabilities if they are wanted; returns (and keeps) the ending that it
        causes.

        Raises ConstraintNotMet, adding nothing, for a token that the constraint does not allow.
        """
        if self.guide is not None:
            self.guide.take(token_id)
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self.ending = self.conditions.after(token_id, self.num_output_tokens, self.guide)
        return self.ending

    def answer(self, now: float) -> Output | Failure:
        """The result of an ended request: its output, or its error."""
        error = self._error_of_cut()
        return self.output(now) if error is None else self.failure(error)

    def failure(self, error: RequestError) -> Failure:
        """The result of a request that ends with this error, with its output so far."""
        return Failure(self.request_id, error.info(), self.output_token_ids)

    def _error_of_cut(self) -> RequestError | None:
        """The error of an output that its deadline or budget cut; None if it is an answer."""
        assert self.ending is not None
        constrained = self.params.constraint is not None
        if self.ending.reason is FinishReason.DEADLINE and (constrained or not self.num_output_tokens):
            missing = "complete output" if constrained else "token"
            return DeadlineExceeded(f"no {missing} after deadline={self.params.deadline} seconds")
        if self.is_to_be_closed:
            return not_complete(self.num_output_tokens, self.params.max_tokens)
        return None

    def output(self, now: float) -> Output:
        """The output of a finished request. A stage that it never reached gets the time `now`."""
        assert self.ending is not None
        reading = self.reading if self.reading is not None and self.reading.done else None
        return Output(
            request_id=self.request_id,
            token_ids=self.output_token_ids,
            finish_reason=self.ending.reason,
            stop_reason=self.ending.matched,
            complete=self.ending.complete,
            forced=self._forced(),
            is_cut=self.ending.is_cut,
            num_own_tokens=self.num_own_tokens,
            logprobs=self._all_logprobs(),
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.cached_tokens or 0,
            recomputed_tokens=self.num_recomputed_tokens,
            prompt_logprobs=reading.result() if isinstance(reading, ScoreReading) else None,
            embedding=reading.result() if isinstance(reading, EmbedReading) else None,
            timings=Timings(
                queued=self._since_receipt(self.scheduled_at, now),
                first_token=self._since_receipt(self.first_token_at, now),
                finished=self._since_receipt(now, now),
            ),
        )

    def _forced(self) -> list[int]:
        """Positions of the model's own tokens that the constraint forced."""
        forced = [] if self.guide is None else self.guide.forced
        return forced if self.num_own_tokens is None else [at for at in forced if at < self.num_own_tokens]

    def _all_logprobs(self) -> Logprobs | None:
        """One entry for each output token, if the request wants them."""
        if self.params.logprobs is None:
            return None
        return Logprobs.join(self.logprobs).part(0, len(self.output_token_ids))

    def _since_receipt(self, event: float | None, now: float) -> float:
        return self._waited + (now if event is None else event) - self.added_at


def sampling_seed(request: Request) -> int:
    """The request's seed, or one derived from its id, so that a retry gives the same text."""
    if request.params.seed is not None:
        return request.params.seed
    digest = hashlib.blake2b(request.request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def deadline(request: Request, now: float) -> float | None:
    """When the request's time is up, on the clock of `now`."""
    seconds = request.params.deadline
    return None if seconds is None else now - request.waited + seconds


def cache_key(request: Request, prefix_caching: bool) -> bytes:
    """The root of the digests of a sequence's blocks: sequences share blocks only if it is equal.

    Without prefix caching, the requests of a family still share; a lone request shares with none (empty key).
    """
    if not prefix_caching and not request.family:
        return b""
    among = ("salt", request.params.cache_salt) if prefix_caching else ("family", request.family)
    adapter = request.adapter
    shared = among if adapter is None else (*among, "adapter", adapter.name, adapter.digest)
    return hashlib.blake2b(msgspec.msgpack.encode(shared), digest_size=32).digest()

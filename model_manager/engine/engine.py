"""Our engine: continuous batching over a ModelRunner. `step` is the diagram; the parts stand in files of their own.

Knows requests and what becomes of them; not processes, nor what the model computes.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ..grammars.compiling import GrammarCompiler
from ..wire.config import ModelConfig
from ..wire.errors import NonFiniteLogits, RequestError
from ..wire.logprobs import Logprobs
from ..wire.request import FinishReason, Request
from ..wire.status import EngineStats, ModelInfo
from .constraints.held import HeldSequences
from .constraints.masks import Masks
from .constraints.preparation import Preparation
from .counters import EngineCounters
from .interface import AdapterSlots, ModelRunner, StepResult
from .launched_step import LaunchedStep
from .sampling.sampler import LaunchedSamples, Sampler, Samples
from .scheduling.admission import admitted
from .scheduling.batch_table import BatchTable, Scheduled
from .scheduling.block_manager import BlockManager
from .scheduling.cache_size import CacheSize
from .scheduling.deadlines import Deadlines
from .scheduling.loaded_adapters import LoadedAdapters
from .scheduling.prompt_outputs import PromptOutputs
from .scheduling.scheduler import Scheduler
from .scheduling.sequence import Sequence, SequenceStatus
from .scheduling.stopping import Ending, StopRules
from .speculation.drafts import Policy, SamplingRound, Speculation, drafter_of
from .this_process import shared_with_fork_server

_MOMENT = 0.01
"""Seconds that a step waits for a constraint where nothing else is to be done."""
_ADMISSIONS = 32
"""Where decoding alone is one launch, max_num_seqs / 32 prompts begin together."""
_NOT_FINITE = "the model computed NaN or infinity for a token of its prompt"


class LLMEngine:
    """An Engine (interface.py) that schedules sequences of tokens onto a ModelRunner.

    A sequence may have `max_len` tokens, prompt and output together: the model's positions, or all that the KV cache
    holds if that is less. `max_tokens` is cut to what that leaves (finish reason length), so a sequence that has the
    cache to itself always gets to its end.
    """

    def __init__(
        self,
        runner: ModelRunner,
        info: ModelInfo,
        config: ModelConfig,
        stop_rules: StopRules,
        clock: Callable[[], float] = time.monotonic,
        *,
        draft_runner: ModelRunner | None = None,
        policy: Policy | None = None,
        adapter_slots: AdapterSlots | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`draft_runner` is a smaller model that guesses tokens, with as many blocks; `policy` says when to speculate,
        by default what suits the device.

        `adapter_slots` are the model's, if it takes adapters. `grammars` compiles constraints over its tokens, if it
        has a tokenizer.
        """
        self.max_len = min(runner.max_model_len, runner.num_blocks * runner.block_size)
        self._runner = runner
        self._stop_rules = stop_rules
        self._clock = clock
        self._blocks = BlockManager(runner.num_blocks, runner.block_size, frugal=not info.device.startswith("cuda"))
        self._table = BatchTable(config.max_num_seqs, self.max_len, runner.block_size)
        self._scheduler = Scheduler(
            self._blocks,
            self._table,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            admits_together=max(1, config.max_num_seqs // _ADMISSIONS) if runner.has_graphs else 1,
        )
        self._cache_size = CacheSize([each for each in (runner, draft_runner) if each], self._scheduler, self.max_len)
        self.info = msgspec.structs.replace(info, cache_bytes=self._cache_size.num_bytes)
        self._adapters = LoadedAdapters(adapter_slots)
        self._reader = PromptOutputs(runner)
        self._masks = Masks(config.max_num_seqs, info.vocab_size)
        self._held = HeldSequences(self._masks)
        self._preparation = Preparation(grammars, self._held.submit)
        self._sampler = Sampler()
        self._sampler.warm_up(info.device)
        self._deadlines = Deadlines(clock)
        self._launched: deque[LaunchedStep] = deque()  # launched but not collected; at most one after a step
        self._ended: list[Sequence] = []  # ended without a token: aborted, overdue, or complete on arrival
        self._arrivals = 0
        self._prefix_caching = config.prefix_caching
        self._counters = EngineCounters(clock, shared_with_fork_server(), grammars.counts if grammars else None)
        self._speculation = Speculation(
            drafter_of(config, self._table, draft_runner),
            policy or Policy.of(config.num_speculative_tokens, info.device, info.vocab_size),
            self._scheduler,
            self._counters,
        )

    def add(self, request: Request) -> None:
        """Queue a request; tokens that it brings as output count as generated.

        Raises InvalidRequest (no prompt, a token outside the vocabulary, a parameter that this model cannot serve, an
        id that is queued or running: that one goes on; an adapter, where the model takes none) and PromptTooLong.
        """
        self._adapters.check(request)
        self._arrivals += 1
        sequence = admitted(
            request,
            vocab_size=self.info.vocab_size,
            max_len=self.max_len,
            stop_rules=self._stop_rules,
            known=self,
            now=self._clock(),
            order=self._arrivals,
            prefix_caching=self._prefix_caching,
        )
        if sequence.params.constraint is not None and sequence.task == "generate":
            self._preparation.add(sequence)
        elif not sequence.is_over:
            self._scheduler.add(sequence)
        else:
            self._ended.append(sequence)
            return
        self._deadlines.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request; its Output, with the tokens it has, comes with the next step. Unknown ids are ignored."""
        sequence = self._scheduler.find(request_id) or self._preparation.find(request_id)
        if sequence is not None:
            self._end(sequence, Ending(FinishReason.ABORT))

    def resize_cache(self, size: int) -> None:
        """Change the size of the KV cache with the next steps: see ResizableEngine (interface.py)."""
        self._cache_size.want(size)

    def __contains__(self, request_id: object) -> bool:
        """True if a request with this id is queued or running."""
        return request_id in self._scheduler or request_id in self._preparation

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._runs() or bool(self._preparation) or self._cache_size.is_due

    def _runs(self) -> bool:
        return bool(self._ended or self._launched or self._scheduler.running or self._scheduler.waiting)

    def step(self) -> StepResult:
        """Run one batch: it is launched, and collected now or, where the device can run ahead, only after the next one
        is launched. What the runner raises (out of memory, a device error) passes through and leaves the engine
        unusable: its process ends, and its requests go on in another one with the tokens reported so far.
        """
        result = StepResult()
        self._end_overdue(result)
        self._take_in_prepared(result)
        self._release_held(result)
        self._resize_cache(result)
        self._load_adapters(result)
        self._collect(result, leaving=self._may_schedule_blind())
        batch = self._schedule(result)
        if not batch and not self._launched:
            self._held.wait(_MOMENT)
        if batch:
            self._launched.append(self._launch(batch))
        self._collect(result, leaving=self._may_run_ahead(batch))
        self._report_ended(result)
        return result

    def stats(self) -> EngineStats:
        """A snapshot; blocks kept only for reuse count as unused."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + len(self._preparation),
            blocks_used=self._blocks.num_blocks - self._blocks.num_free,
            blocks_total=self._blocks.num_blocks,
            preemptions=self._scheduler.num_preemptions,
            **self._counters.snapshot(),
        )

    def check_integrity(self) -> None:
        """Assert the invariants of queues, blocks and rows."""
        self._scheduler.check_integrity()
        assert all(sequence.ending is not None for sequence in self._ended)

    def _end_overdue(self, result: StepResult) -> None:
        overdue = list(self._deadlines.passed())
        if any(sequence.num_pending_tokens for sequence in overdue):
            self._collect(result, leaving=False)  # the results of launched steps still count
        for sequence in overdue:
            if sequence.status is not SequenceStatus.FINISHED:
                self._end(sequence, Ending(FinishReason.DEADLINE))

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        sequence.ending = ending
        self._withdraw(sequence)
        self._ended.append(sequence)

    def _withdraw(self, sequence: Sequence) -> None:
        if sequence.request_id in self._scheduler:
            self._scheduler.finish(sequence)
        else:
            self._preparation.remove(sequence)
            sequence.status = SequenceStatus.FINISHED

    def _take_in_prepared(self, result: StepResult) -> None:
        """Let sequences run whose constraints are compiled; waits a moment if nothing else is to be done."""
        if self._scheduler.is_promotion_due:
            self._preparation.begin_longest_waiting(self._scheduler.most_urgent)
        self._preparation.begin(self._scheduler.waiting.last_near)
        if not self._runs():
            self._preparation.wait(_MOMENT)
        for sequence, error in self._preparation.ready():
            if error is not None:
                self._fail(sequence, error, result)
            elif sequence.is_over:
                sequence.status = SequenceStatus.FINISHED
                self._ended.append(sequence)
            else:
                self._scheduler.add(sequence)

    def _resize_cache(self, result: StepResult) -> None:
        if self._cache_size.is_due:
            self._collect(result, leaving=False)
            result.cache_bytes = self._cache_size.change()

    def _load_adapters(self, result: StepResult) -> None:
        """Load adapters of sequences that may begin to run; a sequence fails if its adapter cannot be loaded."""
        while failed := self._adapters.load(self._scheduler.waiting.window, self._scheduler.running.values()):
            for sequence, error in failed:
                self._fail(sequence, error, result)

    def _schedule(self, result: StepResult) -> list[Scheduled]:
        """The next batch, with drafts and forced tokens; sequences that run for the first time get their start time."""
        batch = self._scheduler.schedule(self._preparation.least_urgent)
        now = self._clock()
        for scheduled in batch:
            sequence = scheduled.sequence
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
                sequence.cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
                self._counters.prompted(sequence.num_prompt_tokens, sequence.cached_tokens or 0)
        if batch:
            self._counters.stepped(len(batch), self._blocks.num_blocks - self._blocks.num_free)
        return self._speculation.extend(self._with_forced(batch, result))

    def _with_forced(self, batch: list[Scheduled], result: StepResult) -> list[Scheduled]:
        """The batch with the tokens that constraints force; sequences get them at once, since nothing else can be
        sampled.

        A sequence that ends with one leaves. If logits are wanted nevertheless, the tokens are drafts.
        """
        if all(scheduled.sequence.guide is None for scheduled in batch):
            return batch
        spare = self._scheduler.max_num_batched_tokens - sum(scheduled.num_tokens for scheduled in batch)
        extended = []
        for scheduled in batch:
            sequence = scheduled.sequence
            forced = sequence.certain_tokens if scheduled.samples and not sequence.is_asked_of_each_token else []
            count = self._scheduler.reserve(sequence, min(len(forced), spare)) if forced else 0
            given = self._give_all(sequence, forced[:count], result)
            spare -= given
            if sequence.status is SequenceStatus.RUNNING:
                extended.append(replace(scheduled, num_tokens=scheduled.num_tokens + given))
        return extended

    def _give_all(
        self, sequence: Sequence, token_ids: list[int], result: StepResult, logprobs: Logprobs | None = None
    ) -> int:
        """Give a sequence tokens up to the one that ends it; returns how many it got."""
        given = 0
        while given < len(token_ids) and self._give(sequence, token_ids[given], logprobs, result):
            given += 1
        self._counters.generated(self._clock(), given)
        return given

    def _may_schedule_blind(self) -> bool:
        """True if the next step can be scheduled and sampled before the last step's tokens are known.

        False for sequences whose tokens decide what comes next, and if a sequence must make room, since the last step
        may end one.
        """
        return (
            bool(self._launched)
            and not any(sequence.samples_by_history for sequence in self._launched[-1].sequences)
            and self._scheduler.schedules_without_preempting()
        )

    def _may_run_ahead(self, batch: List[Scheduled]) -> bool:
        """True if the step of `batch`, just launched, may be collected after the next one: it only samples."""
        return (
            bool(batch) and self._runner.runs_ahead and not self._speculation.drafts and self._launched[-1].only_samples
        )

    def _launch(self, batch: list[Scheduled]) -> LaunchedStep:
        """Launch a batch and its sampling on the device; pending tokens come from the last launched step."""
        sampled = self._launched[-1].token_ids if self._launched else None
        self._masks.begin(each.sequence for each in batch if each.sequence.guide is not None and each.samples)
        output = self._runner.execute(self._table.pack(batch, sampled))
        self._reader.read(batch, output.hidden)
        sampling = [scheduled for scheduled in batch if scheduled.samples]
        read = [scheduled.sequence for scheduled in batch if scheduled.completes and not scheduled.samples]
        self._scheduler.computed(batch)
        sample = functools.partial(self._sample, output.logits)
        rounds = self._held.in_time(self._speculation.rounds(sampling), output.logits, self._sample_late)
        return LaunchedStep(rounds, sample, read, reads=output.hidden is not None)

    def _release_held(self, result: StepResult) -> None:
        """Let held sequences go on whose constraints have."""
        for sequence, error, then in self._held.ready():
            if error is None:
                then(result)
            else:
                self._fail(sequence, error, result)

    def _sample_late(self, sequence: Sequence, logits: Any, result: StepResult) -> None:
        sampling_round = SamplingRound(np.zeros(1, np.int64), [sequence])
        self._postprocess(sampling_round.sequences, self._sample(logits, sampling_round).get(), result)

    def _sample(self, logits: Any, sampling_round: SamplingRound) -> LaunchedSamples:
        rows = self._table.sampling(sampling_round.sequences, masks=self._masks.of(sampling_round.sequences))
        samples = self._sampler.launch(sampling_round.of(logits), rows)
        for row, sequence in enumerate(sampling_round.sequences):
            sequence.await_token(row)
        return samples

    def _collect(self, result: StepResult, *, leaving: bool) -> None:
        """Collect launched steps: all, or all but the last."""
        while len(self._launched) > leaving:
            step = self._launched.popleft()
            self._finish_read(step.read, result)
            for sequences, samples in step.rounds():  # one round, and one more for each right draft
                self._postprocess(sequences, samples, result)

    def _postprocess(self, sequences: List[Sequence], samples: Samples, result: StepResult) -> None:
        """Give each sequence its token unless it has ended meanwhile; sequences that end leave with an Output."""
        now = self._clock()
        for sequence in sequences:
            sequence.num_pending_tokens -= 1
        going = [(row, each) for row, each in enumerate(sequences) if each.status is SequenceStatus.RUNNING]
        given = 0
        for row, sequence in going:
            try:
                sampled = self._has_sampled(sequence, samples, row)
            except RequestError as error:
                self._fail(sequence, error, result)
            else:
                if sampled:
                    given += self._give_or_hold(sequence, samples.token_ids[row], samples.logprobs.get(row), result)
        self._counters.generated(now, given)

    def _give_or_hold(self, sequence: Sequence, token_id: int, logprobs: Logprobs | None, result: StepResult) -> bool:
        """Give a sequence a token; one whose constraint is slow is held, and gets it later. True if it got it."""
        if sequence.guide is None or not sequence.guide.is_slow:
            return self._give(sequence, token_id, logprobs, result)
        self._held.take(sequence, token_id, lambda later: self._give_all(sequence, [token_id], later, logprobs))
        return False

    def _has_sampled(self, sequence: Sequence, samples: Samples, row: int) -> bool:
        """True if there is a token. Without one the sequence ends here if its constraint allows, else this raises."""
        if not sequence.is_sound:
            raise NonFiniteLogits(_NOT_FINITE)
        if sequence.guide is None or samples.possible[row] or not samples.finite[row]:
            samples.check(row)
            return True
        sequence.guide.check_end("the request's other rules leave nothing of what the constraint allows next")
        self._end(sequence, Ending(FinishReason.STOP, complete=True))
        return False

    def _give(self, sequence: Sequence, token_id: int, logprobs: Logprobs | None, result: StepResult) -> bool:
        """Give a sequence a token unless it has ended; a sequence that ends leaves. True if it got the token."""
        if sequence.status is not SequenceStatus.RUNNING:
            return False
        now = self._clock()
        try:
            ending = sequence.append(token_id, logprobs)
        except RequestError as error:
            self._fail(sequence, error, result)
            return False
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        self._scheduler.sampled(sequence)
        if ending is None:
            result.note_progress(sequence.request_id, token_id, logprobs)
        elif sequence.is_to_be_closed:
            self._preparation.close(sequence)
        else:
            result.forget_progress(sequence.request_id)
            result.outputs.append(sequence.output(now))
        return True

    def _finish_read(self, sequences: List[Sequence], result: StepResult) -> None:
        """End scores and embeddings, which are done with their prompts."""
        now = self._clock()
        for sequence in sequences:
            if not sequence.is_sound:
                self._fail(sequence, NonFiniteLogits(_NOT_FINITE), result)
                continue
            sequence.close()
            self._scheduler.sampled(sequence)
            result.add(sequence.answer(now))

    def _fail(self, sequence: Sequence, error: RequestError, result: StepResult) -> None:
        """End a sequence with its own error."""
        if isinstance(error, NonFiniteLogits):
            self._scheduler.distrust(sequence)
        else:
            self._withdraw(sequence)
        result.forget_progress(sequence.request_id)
        result.failures.append(sequence.failure(error))

    def _report_ended(self, result: StepResult) -> None:
        """Report sequences that ended without a token."""
        now = self._clock()
        for sequence in self._ended:
            result.forget_progress(sequence.request_id)
            result.add(sequence.answer(now))
        self._ended.clear()

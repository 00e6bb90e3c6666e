"""Our engine: continuous batching over a ModelRunner. `step` is the diagram; the parts stand in files of their own.

Knows requests and what becomes of them; not processes, nor what the model computes.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as List
from typing import Any

from model_manager.engine.counters import EngineCounters
from model_manager.engine.interface import AdapterSlots, ModelRunner, StepResult
from model_manager.engine.launched_step import LaunchedStep
from model_manager.engine.lora.loaded_adapters import LoadedAdapters
from model_manager.engine.prompt_reader import PromptReader
from model_manager.engine.sampling.sampler import LaunchedSamples, Sampler, Samples
from model_manager.engine.scheduling.batch_table import BatchTable, Scheduled
from model_manager.engine.scheduling.block_manager import BlockManager
from model_manager.engine.scheduling.deadlines import Deadlines
from model_manager.engine.scheduling.scheduler import Scheduler
from model_manager.engine.scheduling.sequence import Sequence, SequenceStatus, accepted
from model_manager.engine.scheduling.stopping import Ending, StopRules
from model_manager.engine.speculation.speculation import Policy, Speculation, Turn, drafter_of
from model_manager.wire.config import ModelConfig
from model_manager.wire.errors import NonFiniteLogits, RequestError
from model_manager.wire.messages import EngineStats, Failure, FinishReason, ModelInfo, Request

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
    ) -> None:
        """`draft_runner` is of a smaller model to guess tokens with, over as many blocks; `policy` is when to
        speculate, by default what suits the device. `adapter_slots` are the model's, if it takes adapters.
        """
        self.info = info
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
        )
        self._adapters = LoadedAdapters(adapter_slots)
        self._reader = PromptReader(runner)
        self._sampler = Sampler()
        self._sampler.warm_up(info.device)
        self._deadlines = Deadlines(clock)
        self._launched: deque[LaunchedStep] = deque()  # and not collected: after a step at most one
        self._ended: list[Sequence] = []  # not by a token: aborted, overdue, or complete when they came
        self._arrivals = 0
        self._prefix_caching = config.prefix_caching
        self._counters = EngineCounters(clock)
        self._speculation = Speculation(
            drafter_of(config, self._table, draft_runner),
            policy or Policy.of(config.num_speculative_tokens, info.device),
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
        sequence = accepted(
            request,
            vocab_size=self.info.vocab_size,
            max_len=self.max_len,
            stop_rules=self._stop_rules,
            known=self._scheduler,
            now=self._clock(),
            order=self._arrivals,
            prefix_caching=self._prefix_caching,
        )
        if sequence.is_over:
            self._ended.append(sequence)
        else:
            self._scheduler.add(sequence)
            self._deadlines.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request; its Output, with the tokens it has, comes with the next step. Unknown ids are ignored."""
        sequence = self._scheduler.find(request_id)
        if sequence is not None:
            self._end(sequence, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._ended or self._launched or self._scheduler.running or self._scheduler.waiting)

    def step(self) -> StepResult:
        """Run one batch: it is launched, and collected now or, where the device can run ahead, only after the next one
        is launched. What the runner raises (out of memory, a device error) passes through and leaves the engine
        unusable: its process ends, and its requests go on in another one with the tokens reported so far.
        """
        result = StepResult()
        self._end_overdue(result)
        self._load_adapters(result)
        self._collect(result, leaving=self._may_schedule_blind())
        batch = self._schedule()
        if batch:
            self._launched.append(self._launch(batch))
        self._collect(result, leaving=self._may_run_ahead(batch))
        self._report_ended(result)
        return result

    def stats(self) -> EngineStats:
        """A snapshot; blocks kept only for reuse count as unused."""
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
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
            self._collect(result, leaving=False)  # what was launched before counts
        for sequence in overdue:
            if sequence.status is not SequenceStatus.FINISHED:
                self._end(sequence, FinishReason.DEADLINE)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.ending = Ending(reason)
        self._scheduler.finish(sequence)
        self._ended.append(sequence)

    def _load_adapters(self, result: StepResult) -> None:
        """Those of sequences that may begin to run; whoever names one that cannot be loaded fails."""
        while failed := self._adapters.load(self._scheduler.waiting.window, self._scheduler.running.values()):
            for sequence, error in failed:
                self._fail(sequence, error, result)

    def _schedule(self) -> list[Scheduled]:
        """The next batch, those stamped that are in one for the first time, with drafts where they are worth it."""
        batch = self._scheduler.schedule()
        now = self._clock()
        for scheduled in batch:
            sequence = scheduled.sequence
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
                sequence.cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
                self._counters.started(sequence)
        self._counters.steps += bool(batch)
        return self._speculation.extend(batch)

    def _may_schedule_blind(self) -> bool:
        """Whether the next step can be scheduled, and its tokens sampled, before those of the last one are known.

        Not for sequences whose tokens have a say in what comes next, nor where someone must make room, which those
        that have ended may do.
        """
        return (
            bool(self._launched)
            and not any(sequence.samples_by_history for sequence in self._launched[-1].sequences)
            and self._scheduler.decodes_without_preempting()
        )

    def _may_run_ahead(self, batch: List[Scheduled]) -> bool:
        """Whether the step of `batch`, just launched, may be collected after the next one: one that only samples."""
        return (
            bool(batch) and self._runner.runs_ahead and not self._speculation.drafts and self._launched[-1].only_samples
        )

    def _launch(self, batch: list[Scheduled]) -> LaunchedStep:
        """Have the device compute a batch and sample from it; tokens that it alone knows are those of the last step."""
        sampled = self._launched[-1].token_ids if self._launched else None
        output = self._runner.execute(self._table.pack(batch, sampled))
        self._reader.read(batch, output.hidden)
        sampling = [scheduled for scheduled in batch if scheduled.samples]
        read = [scheduled.sequence for scheduled in batch if scheduled.completes and not scheduled.samples]
        self._scheduler.computed(batch)
        sample = functools.partial(self._sample, output.logits)
        return LaunchedStep(self._speculation.turns(sampling), sample, read, reads=output.hidden is not None)

    def _sample(self, logits: Any, turn: Turn) -> LaunchedSamples:
        samples = self._sampler.launch(turn.of(logits), self._table.sampling(turn.sequences))
        for row, sequence in enumerate(turn.sequences):
            sequence.await_token(row)
        return samples

    def _collect(self, result: StepResult, *, leaving: bool) -> None:
        """Take in what launched steps have brought: of all, or of all but the last."""
        while len(self._launched) > leaving:
            step = self._launched.popleft()
            self._finish_read(step.read, result)
            for sequences, samples in step.turns():  # one, and another for each draft that is right
                self._postprocess(sequences, samples, result)

    def _postprocess(self, sequences: List[Sequence], samples: Samples, result: StepResult) -> None:
        """Give each sequence its token, unless it has ended meanwhile; those that it ends leave with an Output."""
        now = self._clock()
        for sequence in sequences:
            sequence.num_pending_tokens -= 1
        going = [(row, each) for row, each in enumerate(sequences) if each.status is SequenceStatus.RUNNING]
        self._counters.generated(now, sum(samples.finite[row] for row, _ in going))
        for row, sequence in going:
            error = samples.error(row) if sequence.is_sound else NonFiniteLogits(_NOT_FINITE)
            if error is not None:
                self._fail(sequence, error, result)
                continue
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            logprobs = samples.logprobs.get(row)
            ending = sequence.append(samples.token_ids[row], logprobs)
            self._scheduler.sampled(sequence)
            if ending is None:
                result.note_progress(sequence.request_id, samples.token_ids[row], logprobs)
            else:
                result.forget_progress(sequence.request_id)
                result.outputs.append(sequence.output(now))

    def _finish_read(self, sequences: List[Sequence], result: StepResult) -> None:
        """Scores and embeddings end with their prompts."""
        now = self._clock()
        for sequence in sequences:
            if not sequence.is_sound:
                self._fail(sequence, NonFiniteLogits(_NOT_FINITE), result)
                continue
            sequence.close()
            self._scheduler.sampled(sequence)
            result.outputs.append(sequence.output(now))

    def _fail(self, sequence: Sequence, error: RequestError, result: StepResult) -> None:
        """End a sequence for what is wrong with it alone."""
        if isinstance(error, NonFiniteLogits):
            self._scheduler.distrust(sequence)
        else:
            self._scheduler.finish(sequence)
        result.forget_progress(sequence.request_id)
        result.failures.append(Failure(sequence.request_id, error.info()))

    def _report_ended(self, result: StepResult) -> None:
        """Answers of what ended without a token."""
        now = self._clock()
        for sequence in self._ended:
            result.add(sequence.answer(now))
        self._ended.clear()

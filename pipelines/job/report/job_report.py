"""Makes a job's report at the right time. An error in it never fails the job: it becomes one warning.

A job runs within `reported`: one that ends by an error, or by Ctrl-C, is reported as such. One that ends well calls
`finished`; its outcome then names the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from millrace.model_manager.client.status import ReadStatus
from millrace.model_manager.wire.errors import ConfigError, counted
from millrace.transforms.addresses import Files
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.object_stores import is_local
from millrace.transforms.runners import runs_here
from millrace.transforms.writing.output_files import OutputFiles

from ...edge import unwrapped
from ...flags.job_options import JobOptions
from ...interrupts import Interrupted, ended_by_second_interrupt
from ...pages.found_prompts import Input
from ...pages.html import page, policy
from ...pages.page_files import check_page, is_report_of_whole, write_page
from ...pages.table import Digest, Table, digest_of
from ...pages.texts import harmless, span
from ...places.lost_stores import is_store_lost, note_if_lost, what_is_kept_there
from ...places.sources_and_sinks import files_at, files_of, input_format_of
from ..summary import Outcome
from ..words import AGAIN, RAN, STARTUP, reasons, speeds
from .content import FailureGroup, Report, engine_facts, failures_of, latencies, lengths, over_time, sample_of
from .recording import Recorder
from .report_settings import cost_of, prices_of, settings_of

_SAMPLE = 20
_UNSURE = 10
_MOST_OF_BROKEN = 100_000
"""Rows that are looked at of a job that did not end: whoever pressed Ctrl-C waits for it."""
_EARLIER = "All rows are from earlier runs: this job had nothing left to do. How long they took is not known."
_ENDS_WITHOUT = "the report of what is written is being made; Ctrl-C again ends without it"
_log = logging.getLogger(__name__)


def check_report(options: JobOptions) -> None:
    """Raises ConfigError for a report that cannot be or would replace other files, and for prices that are none."""
    if options.report and options.is_stream:
        raise ConfigError(f"--report {options.report}: takes a job that ends, and {options.source} is a stream")
    prices_of(options)
    if options.report:
        _check_apart(options)
        rows = [str(each) for each in options.input if isinstance(each, Files)]
        check_page("--report", options.report, rows, replaces=options.if_exists == "overwrite")


def _check_apart(options: JobOptions) -> None:
    """Raises ConfigError for a report whose path the job's own files may have."""
    for address in (options.output, options.letters):
        if isinstance(address, Files) and OutputFiles(_resolved(files_at(address).prefix)).may_name(
            _resolved(options.report)
        ):
            raise ConfigError(f"--report {options.report}: files of {address} may have that name; takes another path")


def _resolved(path: str) -> str:
    """The path with its folder's links resolved."""
    if not is_local(path):
        return path
    folder, name = os.path.split(path)
    return f"{os.path.realpath(folder)}/{name}"


@contextlib.contextmanager
def reported(options: JobOptions, read: ReadStatus, before: float) -> Iterator[JobReport]:
    """The report of the job that the block runs; it is written at its end, unless the flags say that there is none.

    `before`: seconds since the command's start.
    """
    report = JobReport(options, read, before)
    try:
        yield report
    except BaseException as error:
        report.broken(error)
        raise


class JobReport:
    """Collects what a report needs while a job runs, and writes it."""

    def __init__(self, options: JobOptions, read: ReadStatus, before: float = 0.0) -> None:
        self._options = options
        self._began = time.time() - before
        self._is_made = False
        self.recorder: Recorder | None = None
        if options.report and runs_here(options.beam, options.runner):
            self.recorder = Recorder(options.job, self._is_model, read)
            self.recorder.read()

    def _is_model(self, name: str) -> bool:
        return self._options.updates is not None or name == self._options.model.name

    def finished(self, outcome: Outcome) -> Outcome:
        """Write the report; the outcome then names it.

        A job that had nothing to do leaves the report of an earlier job that ended as it is. If there is none, the
        report covers all rows that earlier runs have written.
        """
        self._is_made, path = True, self._options.report
        told, notes = outcome, []
        if not _is_counted(outcome):
            told, notes = replace(outcome, files=outcome.earlier_files, earlier_files=[]), [_EARLIER]
        if not path or (notes and (not told.files or is_report_of_whole(path))):
            return outcome
        return replace(outcome, report=path) if self._write(told, "done", notes) else outcome

    def broken(self, error: BaseException) -> None:
        """Write what is known of a job that did not end, if it has written rows."""
        files = files_of(self._options)
        if self._is_made or not self._options.report or files is None or is_store_lost(error):
            return
        with ended_by_second_interrupt(_ENDS_WITHOUT), self._warned():
            outcome = replace(
                Outcome(
                    completions=0,
                    failed_requests=0,
                    unreadable_rows=0,
                    prompt_tokens=0,
                    cached_tokens=0,
                    generated_tokens=0,
                ),
                files=files.interrupted("completions"),
                dead_letter_files=files.interrupted("dead_letters"),
            )
            if outcome.files or outcome.dead_letter_files:
                self._write(outcome, *_how_it_broke(error, files.temporary))

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """What the block raises, Ctrl-C too, is one warning. Raises Interrupted where the output's store is lost."""
        try:
            yield
        except Interrupted:
            raise
        except (Exception, KeyboardInterrupt) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else " ".join(str(error).split())
            _log.warning("the job has no report in %s: %s", self._options.report, why or type(error).__name__)
            files = files_of(self._options)
            if files is None or not isinstance(error, KeyboardInterrupt):
                return
            note_if_lost(error, files)
            if is_store_lost(error):
                raise Interrupted(f"interrupted; {what_is_kept_there(error, files)}") from error

    def _write(self, outcome: Outcome, state: str, notes: list[str]) -> bool:
        """Whether it is written. Ctrl-C ends the report alone, unless the store of the output is lost."""
        path, written = self._options.report, []
        with self._warned():
            if self.recorder is not None:
                self.recorder.read()
            report = self._made(outcome, state, notes)
            write_page(path, page("report.html", report=report, title=report.title, policy=policy()))
            written.append(path)
        return bool(written)

    def _made(self, outcome: Outcome, state: str, notes: list[str]) -> Report:
        options = self._options
        table = Table(outcome.files)
        most = None if state == "done" else _MOST_OF_BROKEN
        digest = digest_of(table, sample=_SAMPLE, unsure=_UNSURE, most_rows=most)
        letters = Table(outcome.dead_letter_files) if outcome.dead_letter_files else None
        failures, letter_rows = failures_of(letters, outcome.failures)
        if state != "done" or not _is_counted(outcome):
            outcome = _as_written(outcome, digest, failures)
        rows = table.at(digest.chosen())
        shown, missing = sample_of(rows, letter_rows, _source(options))
        return Report(
            title=harmless(f"millrace {options.task.command}: {options.output}"),
            state="every row failed" if state == "done" and not outcome.completions else state,
            when=self._when(),
            notes=[*notes, *self._notes(outcome, digest, state)],
            figures=self._figures(outcome, state),
            plots=[over_time(self.recorder, self._elsewhere()), lengths(digest), latencies(digest)],
            ended=digest.ended.most_common(),
            engine=engine_facts(self.recorder) if self.recorder else [],
            engine_unknown=self._engine_unknown(),
            failures=failures,
            rows=shown,
            sample_title=_sample_title(digest, len(rows), len(letter_rows)),
            sample_note=missing if rows or not outcome.completions else "no row of the output can be read from here",
            settings=settings_of(options),
        )

    def _when(self) -> str:
        began = datetime.fromtimestamp(self._began, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"began {began}, took {span(time.time() - self._began)} with everything"

    def _notes(self, outcome: Outcome, digest: Digest, state: str) -> list[str]:
        found = []
        if outcome.earlier_files:
            earlier = counted(len(outcome.earlier_files), "file")
            found.append(f"Resumed: the output includes {earlier} of earlier runs, not counted here.")
        if state != "done":
            found.append("All figures count the rows that were written before the end.")
        if digest.rows and digest.rows != outcome.completions:
            found.append(f"Lengths and times are counted over the {counted(digest.rows, 'row')} of the files.")
        return found

    def _figures(self, outcome: Outcome, state: str) -> list[tuple[str, str, str]]:
        spent = time.time() - self._began
        again = outcome.recomputed_tokens
        rate = speeds(outcome.completions, outcome.generated_tokens, outcome.seconds)
        is_known = self.recorder and (outcome.seconds or state != "done")
        price, rests_on = cost_of(prices_of(self._options), self._options, spent) if is_known else ("", "")
        return [
            ("rows answered", f"{outcome.completions:,}", ""),
            ("rows failed", f"{outcome.dead_letters:,}", reasons(outcome.failures)),
            ("prompt tokens", f"{outcome.prompt_tokens:,}", f"{outcome.cached_tokens:,} from the cache"),
            ("generated tokens", f"{outcome.generated_tokens:,}", ""),
            *([("computed again", counted(again, "token"), AGAIN)] if again else []),
            *([("time", span(outcome.seconds), RAN)] if state == "done" and outcome.seconds else []),
            *([("startup", span(outcome.startup), STARTUP)] if outcome.startup else []),
            *([("speed", rate[0], ", ".join(rate[1:]))] if rate else []),
            ("cost", price or "not known", rests_on or f"{self._elsewhere()}; millrace plan estimates it"),
        ]

    def _elsewhere(self) -> str:
        return f"the job's workers were {self._options.runner.name}'s, and their manager was not asked"

    def _engine_unknown(self) -> str:
        if self.recorder is None:
            return f"not known here: {self._elsewhere()}"
        if not engine_facts(self.recorder):
            return "the manager told nothing of the engine while the job ran"
        shared = (
            "Another job used the engine at the same time: these counts include both jobs. "
            if self.recorder.is_shared
            else ""
        )
        return f"{shared}As the manager told when it was last asked."


def _is_counted(outcome: Outcome) -> bool:
    """Whether the job itself had rows to answer."""
    return bool(outcome.dead_letters or outcome.completions)


def _how_it_broke(error: BaseException, temporary: str) -> tuple[str, list[str]]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", [f"Interrupted: --resume goes on from what is in {temporary}."]
    ours = unwrapped(error)
    said = str(ours) if ours is not None else f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "failed", [f"Failed: {harmless(said[:600])}", f"--resume goes on from what is in {temporary}."]


def _as_written(outcome: Outcome, digest: Digest, failures: list[FailureGroup]) -> Outcome:
    """Counts of what is in the files of a job that did not end."""
    return replace(
        outcome,
        completions=digest.rows - digest.failed,
        failed_requests=sum(each.rows for each in failures) + digest.failed,
        failures={each.error: each.rows for each in failures},
        prompt_tokens=digest.prompt_tokens.total,
        cached_tokens=digest.cached_tokens,
        generated_tokens=digest.generated_tokens.total,
    )


def _sample_title(digest: Digest, rows: int, letters: int) -> str:
    if not rows:
        return f"The first {counted(letters, 'dead letter')}" if letters else "Rows"
    found = "All rows" if rows == digest.rows else f"A sample of {counted(rows, 'row')}"
    unsure = ", with the rows of the lowest confidence" if digest.unsure and rows < digest.rows else ""
    return found + unsure + (f", and {counted(letters, 'dead letter')}" if letters else "")


def _source(options: JobOptions) -> Input | None:
    """Where prompts can be looked up again."""
    if not isinstance(options.source, Files):
        return None
    shape = RowShape(
        prompt_column=options.prompt_column,
        id_column=options.id_column,
        row_params=options.row_params,
        documents=options.task.documents,
        template=options.template,
    )
    return Input([str(each) for each in options.input], shape, input_format_of(options))

"""The tokens of an input, counted with the model's own tokenizer, in all rows or in a sample of them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import msgspec

from millrace.model_manager.client.encoding import Encoding
from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.store import resolve_tokenizer
from millrace.model_manager.wire.decoding import json_decoder
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest, RequestError
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.status import ModelInfo
from millrace.transforms.elements.completions import DeadLetter, Prompt
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.elements.prompt_template import with_system
from millrace.transforms.files.input_files import open_input
from millrace.transforms.reading.count import RowCount, count_rows
from millrace.transforms.reading.file_ranges import FileRange, match_files, split_file
from millrace.transforms.reading.read_rows import read_range

_SEED = 0
_BOUND = 1.96
"""Standard errors on either side that hold the mean of a large sample 19 times out of 20."""
_UNLIMITED = 2**40
_MOST_READ = 1_000_000
"""Rows that are read, though not tokenized, to find a sample among them."""


@dataclass(frozen=True)
class TokenCounts:
    """What was counted, and what that says of the whole input."""

    rows: RowCount
    """Rows of the whole input."""
    sampled: int
    """Rows that were looked at."""
    unreadable: int
    """Sampled rows that would be dead letters."""
    prompt_tokens: int
    """Prompt tokens of all sampled rows together."""
    most_generated: int
    """What these rows' parameters allow them to generate together."""
    prompt_error: float
    """Half the width of the 95 % interval around the mean of prompt tokens; 0 where all rows were counted."""

    @property
    def scale(self) -> Fraction:
        """Rows of the input for each that was sampled."""
        return Fraction(self.rows.rows, self.sampled) if self.sampled else Fraction(0)

    @property
    def readable(self) -> int:
        """Sampled rows that are prompts."""
        return self.sampled - self.unreadable


def count_tokens(
    patterns: Sequence[str],
    encoding: Encoding,
    params: SamplingParams,
    shape: RowShape,
    *,
    system: str | None = None,
    input_format: str | None = None,
    sample: int | None = None,
) -> TokenCounts:
    """Count the tokens of all rows. An input of more than `sample` rows is sampled: `sample` rows, spread evenly.

    Of a very large input only randomly chosen parts are read. Raises ConfigError if no row is a prompt.
    """
    ranges = [part for file in match_files(list(patterns)) for part in split_file(file, input_format)]
    rows = count_rows(patterns, input_format)
    whole = sample is None or (rows.exact and rows.rows <= sample)
    stride = 1 if whole or sample is None else max(min(rows.rows, _MOST_READ) // sample, 1)
    tally = _Tally(encoding, params, system)
    for row in islice(_rows(ranges, shape, stride), None if whole else sample):
        tally.add(row)
    if not tally.prompts:
        why = tally.reason or "it holds no rows"
        raise ConfigError(f"--input {' '.join(patterns)}: no row is a prompt: {why}; takes rows as millrace run does")
    if whole:
        rows = RowCount(len(tally.prompts) + tally.unreadable, exact=True)
    return tally.counted(rows, whole=whole)


class _Tally:
    def __init__(self, encoding: Encoding, params: SamplingParams, system: str | None) -> None:
        self._encoding = encoding
        self._system = system
        self._params = msgspec.structs.asdict(params)
        self.prompts: list[int] = []
        self.unreadable = 0
        self.reason = ""
        """Why the first unreadable row is unreadable."""
        self._generated = 0

    def add(self, row: Prompt | DeadLetter) -> None:
        try:
            if isinstance(row, DeadLetter):
                raise InvalidRequest(row.reason)
            params = SamplingParams.parse(self._params | row.params)
            self.prompts.append(len(self._encoding.prompt(with_system(row, self._system), _ANY_MODEL)))
            self._generated += params.max_tokens * params.n
        except RequestError as error:
            self.unreadable += 1
            self.reason = self.reason or str(error)

    def counted(self, rows: RowCount, *, whole: bool) -> TokenCounts:
        count = len(self.prompts)
        error = 0.0 if whole or count < 2 else _BOUND * statistics.stdev(self.prompts) / math.sqrt(count)
        sampled = count + self.unreadable
        return TokenCounts(rows, sampled, self.unreadable, sum(self.prompts), self._generated, error)


def load_encoding(model: str, revision: str | None, chat: bool | None) -> Encoding:
    """The model's tokenizer and chat template; its weights are not fetched."""
    return Encoding(Tokenizer.load(resolve_tokenizer(model, revision)), chat)


def mean_generated(patterns: Sequence[str]) -> Fraction:
    """Tokens that a completion has, over the completions of an earlier run; raises ConfigError where there are none."""
    rows = tokens = 0
    for file in match_files(list(patterns), "--trial"):
        with open_input(file.path) as stream:
            for line in stream:
                rows += 1
                try:
                    tokens += json_decoder(_EarlierRow).decode(line).completion_tokens
                except msgspec.MsgspecError as error:
                    raise ConfigError(f"--trial {file.path}: takes completions of `millrace run`: {error}") from None
    if not rows:
        raise ConfigError(f"--trial {' '.join(patterns)}: holds no completion; takes the output of `millrace run`")
    return Fraction(tokens, rows)


class _EarlierUsage(msgspec.Struct):
    completion_tokens: int


class _BatchResponseBody(msgspec.Struct):
    usage: _EarlierUsage


class _BatchResponse(msgspec.Struct):
    body: _BatchResponseBody


class _EarlierRow(msgspec.Struct):
    usage: _EarlierUsage | None = None
    response: _BatchResponse | None = None
    """The response, in a row of OpenAI's batch format."""

    @property
    def completion_tokens(self) -> int:
        found = self.response.body.usage if self.response else self.usage
        return found.completion_tokens if found else 0


_ANY_MODEL = ModelInfo("", "", "", "", "", _UNLIMITED, _UNLIMITED, 0, [], 0.0)
"""No prompt is too long here: whether it is depends on settings that a plan does not know."""


def _rows(ranges: list[FileRange], shape: RowShape, stride: int) -> Iterator[Prompt | DeadLetter]:
    """Every so many rows, of ranges in a random order: wherever one stops, each row was as likely to be among them."""
    seen = 0
    for part in random.Random(_SEED).sample(ranges, len(ranges)):
        for row in read_range(part, shape):
            if seen % stride == 0:
                yield row
            seen += 1

"""Parameters of one request: how it is sampled, and its place among others. Every field belongs to a single request.

SamplingParams is the one table of parameters. Flags and their help, row columns, YAML settings, template parameters
and the names of OpenAI's batch format are made from its fields. To add a parameter:

1. Here: add the field, its docstring (the flag's help) and its range (`Takes`). If the sampler reads it for each row of
   logits, add a `Column`, from which `engine/sampling/logit_rows.py` makes the rows' columns.
2. `engine/sampling/torch_sampling.py`: apply it. This runs on every device; tests compare it with transformers.
3. The other back ends refuse it by name, and may stay so. One that is to obey it passes it on in its file
   (`backends/NAME.py`, or a dialect of `backends/endpoint/`) and lists it in its row of `wire/backends.py`;
   tests/model_manager/backends/test_parameters.py holds that the two agree.

On a CPU, torch samples steps with a row that sets the parameter, until the compiled kernel knows it too: a column of
`engine/sampling/kernel_record.py`, read as `Float.NAME` or `Int.NAME` in `cuts.py` or `edits.py`.

A parameter that ends the output belongs to `engine/scheduling/stopping.py` instead, one that bans or favours tokens to
`engine/sampling/token_rules.py`. Describe it in docs/reference/sampling.md; a test holds that each parameter is there.
`make reference` and `python -m millrace.pipelines.dataflow.metadata > deploy/dataflow/metadata.json` list its flag.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar, get_type_hints

import msgspec

from .constraint import Constraint
from .conversion import SettingsMeta, converted, fitted, nearest, shown
from .errors import InvalidRequest

MOST_LOGPROBS = 20
"""Alternatives to a token whose log-probabilities can be asked for."""
MAX_STOPS = 16
MAX_ANSWERS = 64
_MAX_WORDS = 1000
_MAX_CHARACTERS = 2**15
_MAX_STOP_TOKENS = 1000
_MAX_IDS = 2**18
"""Token ids in one list. An engine reads them between two steps: so many take 0.1 s."""
_MAX_LENGTH = 256
_MAX_SALT = 256
_MOST = "2**63 - 1"
"""The largest integer that every process and every sampler takes."""
_TOKEN_IDS = f"token ids of 0 to {_MOST}"
_SURROGATE = re.compile("[\ud800-\udfff]")
_Metadata = TypeVar("_Metadata")
PARAMETERS_ELSEWHERE = {
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "random_seed": "seed",
    "stop_sequences": "stop",
    "temp": "temperature",
}
"""Parameters by the names that other libraries have for them."""

SCHEDULING = ("priority", "deadline", "cache_salt", "adapter")
"""Parameters that count for every task; all others are about generating."""


@dataclass(frozen=True)
class Takes:
    """The range of a parameter; None, which stands for a parameter that is not given, is always taken."""

    words: str
    holds: Callable[[Any], object]
    each: bool = False
    """The range holds for each entry of a list."""


@dataclass(frozen=True)
class Column:
    """The sampler has this parameter as a column of its rows."""

    dtype: str
    """Name of a numpy type."""


_COUNT = Takes(f"1 to {_MOST}", lambda count: 1 <= count < 2**63)
_TEMPERATURE = Takes("0 (greedy) to 100", lambda temperature: 0 <= temperature <= 100)
_TOP_K = Takes(f"0 (off) to {_MOST}", lambda k: 0 <= k < 2**63)
_SHARE = Takes("more than 0, at most 1", lambda share: 0 < share <= 1)
_FRACTION = Takes("0 (off) to 1", lambda fraction: 0 <= fraction <= 1)
_PENALTY = Takes("-2 to 2", lambda penalty: -2 <= penalty <= 2)
_FACTOR = Takes("more than 0, at most 100", lambda factor: 0 < factor <= 100)
_ANSWERS = Takes(f"1 to {MAX_ANSWERS}", lambda count: 1 <= count <= MAX_ANSWERS)
_SEED = Takes(f"0 to {_MOST}", lambda seed: 0 <= seed < 2**63)
_PRIORITY = Takes("-2**31 to 2**31 - 1", lambda priority: -(2**31) <= priority < 2**31)
_SECONDS = Takes("a finite number of seconds above 0", lambda seconds: 0 < seconds < math.inf)
_LOGPROBS = Takes(f"0 to {MOST_LOGPROBS}", lambda count: 0 <= count <= MOST_LOGPROBS)
_SALT = Takes(f"at most {_MAX_SALT} characters", lambda text: len(text) <= _MAX_SALT)
_PATH = Takes("at most 4096 characters", lambda text: len(text) <= 4096)
_UTF8 = Takes("text that can be UTF-8", lambda text: not _SURROGATE.search(text))
_SOME = Takes("at least one token id", len)
_FEW_STOPS = Takes(f"at most {MAX_STOPS} strings", lambda texts: len(texts) <= MAX_STOPS)
_FEW_STOP_TOKENS = Takes(f"at most {_MAX_STOP_TOKENS:,} token ids", lambda ids: len(ids) <= _MAX_STOP_TOKENS)
_FEW_IDS = Takes(f"at most {_MAX_IDS:,} token ids", lambda ids: len(ids) <= _MAX_IDS)
_FEW_WORDS = Takes(f"at most {_MAX_WORDS:,} strings", lambda words: len(words) <= _MAX_WORDS)
_SHORT_WORDS = Takes(
    f"at most {_MAX_CHARACTERS:,} characters in all", lambda words: sum(map(len, words)) <= _MAX_CHARACTERS
)
_IDS = Takes(_TOKEN_IDS, lambda token: 0 <= token < 2**63, each=True)
_LENGTH = Takes(f"strings of 1 to {_MAX_LENGTH} characters", lambda text: 0 < len(text) <= _MAX_LENGTH, each=True)
_ALL_UTF8 = Takes("text that can be written as UTF-8", lambda text: not _SURROGATE.search(text), each=True)
_WORDS = Takes("strings with more than spaces", str.strip, each=True)


class SamplingParams(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    metaclass=SettingsMeta,
):
    """Parameters of one request, in the field's usual names; greedy unless `temperature` is above 0.

    A constraint may be given as an object, as a row has it: `constraint={"regex": "[0-9]+"}`.

    Raises InvalidRequest, naming the parameter, for a value of another type or outside its range.
    """

    max_tokens: Annotated[int, _COUNT] = 128
    """Most tokens to generate, ≥ 1; fewer if the model's context ends first."""
    min_tokens: int = 0
    """No end-of-sequence token, stop token or stop string ends the output before it has this many tokens."""
    temperature: Annotated[float, _TEMPERATURE, Column("f4")] = 0.0
    """0 is greedy; otherwise logits are divided by it before top_k and the other cuts; at most 100."""
    top_k: Annotated[int, _TOP_K, Column("i8")] = 0
    """Sample among the k likeliest tokens; 0 is all."""
    top_p: Annotated[float, _SHARE, Column("f8")] = 1.0
    """Sample among the likeliest tokens that together reach this probability, 0 < top_p ≤ 1 (after top_k)."""
    min_p: Annotated[float, _FRACTION, Column("f8")] = 0.0
    """Sample among tokens at least this fraction as likely as the likeliest, 0 ≤ min_p ≤ 1."""
    typical_p: Annotated[float, _SHARE, Column("f8")] = 1.0
    """Sample among the most typical tokens that together reach this probability, 0 < typical_p ≤ 1 (after the rest)."""
    repetition_penalty: Annotated[float, _FACTOR, Column("f4")] = 1.0
    """Above 1 makes tokens of the prompt and the output less likely, below 1 more; 0 < repetition_penalty ≤ 100."""
    presence_penalty: Annotated[float, _PENALTY, Column("f4")] = 0.0
    """Subtracted from the logits of tokens that the output contains, -2 to 2."""
    frequency_penalty: Annotated[float, _PENALTY, Column("f4")] = 0.0
    """Subtracted from the logits of tokens that the output contains, once per occurrence, -2 to 2."""
    logit_bias: Annotated[dict[int, float], _FEW_IDS] = {}
    """Token ids and what is added to their logits, -100 to 100."""
    allowed_token_ids: Annotated[tuple[int, ...] | None, _SOME, _FEW_IDS, _IDS] = None
    """Generate only these tokens."""
    bad_words: Annotated[tuple[str, ...], _FEW_WORDS, _SHORT_WORDS, _LENGTH, _ALL_UTF8, _WORDS] = ()
    """Never generate these strings (at most 1,000), as the model's tokenizer encodes them with and without a space
    before."""
    constraint: Constraint | None = None
    """What the output must be: a regular expression, a JSON Schema, any JSON, a grammar or a list of strings."""
    n: Annotated[int, _ANSWERS] = 1
    """Answers per prompt, 1 to 64; they share the prompt's KV cache. Greedy answers are all equal."""
    seed: Annotated[int | None, _SEED] = None
    """The same seed gives the same random numbers; in float32, except for rounding, also the same tokens whatever else
    is in the batch. Default: derived from the row's own id, else from the request's."""
    stop: Annotated[tuple[str, ...], _FEW_STOPS, _LENGTH, _ALL_UTF8] = ()
    """Generation ends at the first of these strings in the output; the text excludes it."""
    stop_token_ids: Annotated[tuple[int, ...], _FEW_STOP_TOKENS, _IDS] = ()
    """Generation ends at the first of these tokens (at most 1,000); the text excludes it."""
    include_stop_str_in_output: bool = False
    """Include in the text the stop string, or the stop token's text, that ended it."""
    ignore_eos: bool = False
    """Continue past the model's end-of-sequence tokens (for benchmarks)."""
    priority: Annotated[int, _PRIORITY] = 0
    """Requests with a lower number run first and are preempted last; higher ones keep a small share. Equal numbers run
    in order of arrival."""
    deadline: Annotated[float | None, _SECONDS] = None
    """Seconds from the manager's receipt of the request to its end. It then returns the tokens it has, or fails if it
    has none."""
    cache_salt: Annotated[str, _SALT, _UTF8] = ""
    """Prompts with different salts never share cached keys and values: a salt per tenant keeps tenants apart."""
    adapter: Annotated[str, _PATH, _UTF8] = ""
    """LoRA adapter on top of the model: a folder, a hub name or `gs://bucket/folder`; empty is the model alone."""
    logprobs: Annotated[int | None, _LOGPROBS] = None
    """Return the log-probability of each generated token, and of this many of the likeliest in its place, 0 to 20."""
    prompt_logprobs: Annotated[int | None, _LOGPROBS] = None
    """Return the log-probability of each prompt token, and of this many of the likeliest in its place, 0 to 20."""

    def __post_init__(self) -> None:
        for name, takes, default in _RANGES:
            value = getattr(self, name)
            if value is default:  # as most are, and each request is checked by every process that it passes
                continue
            for each in value or () if takes.each else (value,):
                _check(name, each, each is None or bool(takes.holds(each)), takes.words)
        _check(
            "min_tokens",
            self.min_tokens,
            0 <= self.min_tokens <= self.max_tokens,
            f"0 to max_tokens ({self.max_tokens})",
        )
        for token, bias in self.logit_bias.items():
            held = 0 <= token < 2**63 and -100.0 <= bias <= 100.0
            _check("logit_bias", {token: bias}, held, f"{_TOKEN_IDS}, each with -100 to 100")

    def unsampled(self) -> Self:
        """The scheduling parameters alone, without those about generating."""
        return type(self)(**{name: getattr(self, name) for name in SCHEDULING})

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Read a row of JSON. A lone string for `stop` or `bad_words` is a list of one; the keys of `logit_bias` are
        strings. Raises InvalidRequest for an unknown name or a wrong type.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        for name in ("stop", "bad_words"):
            if isinstance(fields.get(name), str):
                fields[name] = [fields[name]]
        fields = _with_constraint(fields)
        made = converted(fields, cls, InvalidRequest, what="sampling parameter", near=nearest_parameter)
        _check_biases(fields.get("logit_bias", {}), made.logit_bias)
        return made

    @classmethod
    def _nearest(cls, name: str) -> str | None:
        return nearest_parameter(name)

    @classmethod
    def _fitted(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        made = fitted(_with_constraint(fields), cls, InvalidRequest)
        _check_biases(fields.get("logit_bias", {}), made.get("logit_bias", {}))
        return made

    def updated(self, fields: Mapping[str, Any]) -> Self:
        """These parameters with a row's own on top; raises InvalidRequest as `parse` does."""
        return self.parse(msgspec.to_builtins(self) | dict(fields)) if fields else self


def _with_constraint(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields with the constraint made of an object, or of its JSON; an error in it names what is wrong inside."""
    given = fields.get("constraint")
    return {**fields, "constraint": Constraint.parse(given)} if isinstance(given, Mapping | str) else fields


def _noted(kind: type[_Metadata]) -> list[tuple[str, _Metadata]]:
    """What the fields' types say of that kind, in the order of the fields."""
    hints = get_type_hints(SamplingParams, include_extras=True)
    return [
        (name, each)
        for name in SamplingParams.__struct_fields__
        for each in getattr(hints[name], "__metadata__", ())
        if isinstance(each, kind)
    ]


_OWN_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
_RANGES = [(name, takes, _OWN_DEFAULTS[name]) for name, takes in _noted(Takes)]
COLUMNS = {name: column.dtype for name, column in _noted(Column)}
"""Parameters that the sampler has as columns of its rows, and their types."""


def _check_biases(given: Mapping[Any, Any], biases: Mapping[int, float]) -> None:
    """Raises InvalidRequest for a token that is given twice, as `5` and as `"5"`."""
    if len(biases) != len(given):
        ((twice, _),) = Counter(map(int, given)).most_common(1)
        _check("logit_bias", given, False, f"each token once; {twice} is there twice")


def range_of(name: str) -> str:
    """What a parameter takes, in words; empty where its type says all."""
    return ", ".join(takes.words for each, takes, _ in _RANGES if each == name)


def nearest_parameter(name: str) -> str | None:
    """The parameter that was probably meant by a name that is none: misspelt, or another library's."""
    return PARAMETERS_ELSEWHERE.get(name) or nearest(name, SamplingParams.__struct_fields__)


def _check(name: str, got: object, holds: bool, takes: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name}={shown(got)}: takes {takes}")

"""The tasks, and what each is told beside a model, sampling parameters and prompts: one frozen struct a task.

The commands' flags, the template's parameters, the rows' settings (YAML, Java) and what a resumed job compares are
made of these fields. The transforms' constructors repeat them, since editors and type checkers read signatures as they
stand; tests/transforms/test_tasks.py compares names, types, defaults and texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from millrace.model_manager.wire.request import Pooling

from .typed.document_template import DEFAULT_TEMPLATE, Template

TaskName = Literal["generate", "score", "embed", "extract", "classify"]
MAX_TOKENS = 1024
"""Most tokens of an extracted answer, where the parameters do not say."""
DEFAULT_THRESHOLD = 0.5
CLASSIFY_TEMPLATE = DEFAULT_TEMPLATE.replace("Extract these fields", "Classify the document")


class GenerateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts to completions."""

    template: str | None = None
    """Make each prompt from the row's columns: 'Summarize: {text}'. A row that lacks a column is a dead letter."""
    system: str | None = None
    """System message of each chat, unless the row's messages have one. Needs a model with a chat template."""
    keep_cut: bool = False
    """Keep a constrained answer as it is when max_tokens cuts it, with finish_reason length, as OpenAI does. By default
    a short ending replaces its last tokens, or it is a dead letter."""
    stateful: bool = False
    """Keep requests in flight in the runner's state. For long generations on streams; not for a broker's messages on
    Prism (docs: Streams)."""


class ScoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and continuations to log-probabilities."""

    template: str | None = None
    """Make each prompt from the row's columns: 'Summarize: {text}'. A row that lacks a column is a dead letter."""
    system: str | None = None
    """System message of each chat, unless the row's messages have one. Needs a model with a chat template."""
    continuations_column: str = "continuations"
    """Column of continuations: a string, or a list of strings or of lists of token ids."""


class EmbedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts to vectors."""

    template: str | None = None
    """Make each prompt from the row's columns: 'query: {text}'. A row that lacks a column is a dead letter."""
    pooling: Pooling = "last"
    """State that becomes the vector: the last token's, or the mean of all tokens' states."""
    normalize: bool = True
    """Scale each vector to length 1."""


class ExtractSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Documents to rows of a type."""

    rows: Any  # msgspec describes no union of classes and paths
    """A dataclass, a NamedTuple, a pydantic model, or a JSON Schema: a mapping or a file."""
    examples: Sequence[tuple[str, Any]] = ()
    """Documents with their rows: instances of the type, or mappings."""
    template: Template = DEFAULT_TEMPLATE
    """The prompt, with places for {fields}, {examples} and {document}: text, or chat messages."""
    details: bool = False
    """Give each row's id, value, confidence, spans and more, instead of the value alone."""
    stateful: bool = False
    """Keep requests in flight in the runner's state. For long generations on streams; not for a broker's messages on
    Prism (docs: Streams)."""


class ClassifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Documents to labels."""

    labels: Sequence[str] | Mapping[str, str]
    """The labels, or a mapping from each label to its meaning: two or more labels, or one with multiple."""
    multiple: bool = False
    """A document may have several labels, or none."""
    threshold: float | None = None
    """Least probability of a label that holds, with multiple. Default: 0.5."""
    examples: Sequence[tuple[str, str | Sequence[str]]] = ()
    """Documents with their label, or labels."""
    template: Template = CLASSIFY_TEMPLATE
    """The prompt, with places for {fields}, {examples} and {document}: text, or chat messages."""


TaskSettings = GenerateSettings | ScoreSettings | EmbedSettings | ExtractSettings | ClassifySettings

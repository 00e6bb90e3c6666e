"""One table of the tasks, as commands have them: names, outputs, flags, and the sampling parameters that matter."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.classify import Classify
from millrace.transforms.embed import Embed
from millrace.transforms.extract import Extract
from millrace.transforms.generate import Generate
from millrace.transforms.requests.model_transform import ModelTransform
from millrace.transforms.score import Score
from millrace.transforms.tasks import (
    MAX_TOKENS,
    ClassifySettings,
    EmbedSettings,
    ExtractSettings,
    GenerateSettings,
    ScoreSettings,
    TaskName,
    TaskSettings,
)

from .document_flags import add_classification, add_extraction, read_classification, read_extraction
from .from_settings import add_settings, given

_ALL = frozenset(SamplingParams.__struct_fields__)
_OF_EVERY_TASK = frozenset(("priority", "deadline", "cache_salt", "adapter"))
"""Parameters that say how a request runs, not how it is sampled."""
_NOT_UNDER_A_GRAMMAR = {
    *("n", "constraint", "logprobs", "prompt_logprobs", "min_tokens", "stop", "stop_token_ids"),
    *("include_stop_str_in_output", "ignore_eos", "allowed_token_ids", "bad_words"),
}
"""Parameters that a row's grammar takes the place of."""
_NOT_FROM_SETTINGS = frozenset(("rows", "labels", "examples", "template", "details"))
"""Settings of tasks on documents that flags name by files, or that rows of files have anyway."""


@dataclass(frozen=True)
class TaskCommand:
    """A task, and its command."""

    name: TaskName
    command: str
    does: str
    transform: Callable[..., ModelTransform]
    settings: type[TaskSettings]
    output: str
    """Where results go by default. Each task has its own place, since --resume tells by ids alone what is done."""
    parameters: Collection[str] = _ALL
    """The sampling parameters that matter."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that have another default than elsewhere."""
    chat: str = "auto"
    add_files: Callable[[Any], None] | None = None
    """Adds the flags that name files, for a task on documents."""
    read_files: Callable[[argparse.Namespace, dict[str, Any]], Any] | None = None
    """Reads the settings that these flags and others say, and checks them, for a task on documents."""

    @property
    def documents(self) -> bool:
        """Whether the input is documents, text files read whole, and not prompts."""
        return self.read_files is not None

    def add_flags(self, group: Any) -> list[str]:
        """Add the flags of the settings; returns the names of the settings that need no file."""
        if self.add_files:
            self.add_files(group)
        return add_settings(group, self.settings, leave_out=_NOT_FROM_SETTINGS if self.documents else ())

    def read_flags(self, known: argparse.Namespace, names: Collection[str]) -> TaskSettings:
        """Raises ConfigError, one sentence that names the flag and its value."""
        values = given(known, names)
        settings: TaskSettings = self.read_files(known, values) if self.read_files else self.settings(**values)
        return settings


TASKS: dict[str, TaskCommand] = {
    task.name: task
    for task in (
        TaskCommand(
            name="generate",
            command="run",
            does="Complete every prompt of the input files, and write the completions.",
            transform=Generate,
            settings=GenerateSettings,
            output="out/completions",
        ),
        TaskCommand(
            name="score",
            command="score",
            does="Give the log-probabilities of every prompt's continuations.",
            transform=Score,
            settings=ScoreSettings,
            output="out/scores",
            parameters=_OF_EVERY_TASK,
        ),
        TaskCommand(
            name="embed",
            command="embed",
            does="Give every prompt as a vector.",
            transform=Embed,
            settings=EmbedSettings,
            output="out/embeddings",
            parameters=_OF_EVERY_TASK,
            chat="never",
        ),
        TaskCommand(
            name="extract",
            command="extract",
            does="Give what a schema asks for of every document, as a row of its types.",
            transform=Extract,
            settings=ExtractSettings,
            output="out/rows",
            parameters=_ALL - _NOT_UNDER_A_GRAMMAR,
            defaults={"max_tokens": MAX_TOKENS},
            add_files=add_extraction,
            read_files=read_extraction,
        ),
        TaskCommand(
            name="classify",
            command="classify",
            does="Give the label of every document, and how likely each label is.",
            transform=Classify,
            settings=ClassifySettings,
            output="out/labels",
            parameters=_OF_EVERY_TASK,
            add_files=add_classification,
            read_files=read_classification,
        ),
    )
}

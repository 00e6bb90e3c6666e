"""Classify: documents → which of some labels hold, and how likely each is.

labelled = documents | Classify(["complaint", "praise", "question"], "org/model")
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

import msgspec

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.conversion import shown
from millrace.model_manager.wire.errors import ConfigError
from millrace.model_manager.wire.request import Output, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.classification import Classification
from .elements.completions import Prompt, content_id
from .elements.task_results import Classified, spent
from .models.client import Client
from .requests.model_transform import ModelSettings
from .requests.row_output import RowOutputTransform
from .tasks import CLASSIFY_TEMPLATE, DEFAULT_THRESHOLD
from .typed.document_template import MessageContent, Prompts, Template
from .typed.documents import document_of, rows_of_documents
from .typed.examples import example_answer
from .typed.leaves import bare, choice
from .typed.shapes import Member, Record

LABEL = "label"
"""The key of the answer whose value is one of the labels."""


class Classify(RowOutputTransform):
    """A Classification for each document. Documents, keys and failures work as in Extract.

    The answers that would be right are scored as wholes, `{"label": "praise"}` for each label, over a prompt that they
    share; nothing is generated. None begins with another, so their probabilities given that it is one of them are the
    softmax of their log-probabilities, whatever their lengths. With `multiple`, each label is scored on its own,
    `{"praise": true}` against `{"praise": false}`, and holds where its probability reaches the threshold.
    """

    def __init__(
        self,
        labels: Sequence[str] | Mapping[str, str],
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        multiple: bool = False,
        threshold: float | None = None,
        examples: Sequence[tuple[str, str | Sequence[str]]] = (),
        template: Template = CLASSIFY_TEMPLATE,
        text_column: str | None = None,
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`labels`: The labels, or a mapping from each label to its meaning: two or more labels, or one with multiple.

        `multiple`: A document may have several labels, or none.

        `threshold`: Least probability of a label that holds, with multiple. Default: 0.5.

        `examples`: Documents with their label, or labels.

        `template`: The prompt, with places for {fields}, {examples} and {document}: text, or chat messages.

        `text_column` is where mappings have the document; by default `text`, `document` or `prompt`. Of the sampling
        parameters only priority, deadline, cache_salt and adapter are used.

        `settings`: as millrace.transforms.requests.model_transform.ModelSettings explains them.
        """
        said = _checked(labels, multiple)
        threshold = _threshold(threshold, multiple)
        record = _record(said, multiple)
        shown = [(document, example_answer(record, _answer(given, said, multiple))) for document, given in examples]
        self._prompts = Prompts(record, shown, template)
        task = _Classifying(list(said), self._prompts, threshold, text_column)
        super().__init__(task, model, params, settings)

    def prompt(self, document: str) -> MessageContent:
        """What the model is told about a document."""
        return self._prompts.of(document)

    @property
    def row_type(self) -> Any:
        return Classification

    @property
    def make_row(self) -> Callable[[Classified], Any]:
        return _row


class _Classifying:
    result = Classified
    name = "classify"
    request: RequestTask = "score"

    def __init__(self, labels: list[str], prompts: Prompts, threshold: float | None, text_column: str | None) -> None:
        """`threshold`: of each label by itself; without one they exclude each other."""
        self.rows = rows_of_documents(text_column)
        self._labels = labels
        self._prompts = prompts
        self._threshold = threshold
        if threshold is None:
            self._answers = [_one(LABEL, label) for label in labels]
        else:
            self._answers = [_one(label, held) for label in labels for held in (True, False)]
        self._digest = content_id([prompts.of(""), self._answers])

    def id_parts(self, prompt: Prompt) -> tuple[Any, ...]:
        document_of(prompt)
        return "classify", self._digest

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        content = self._prompts.of(document_of(prompt))
        return client.score(content, self._answers, params, request_id=request_id)

    def element(self, prompt: Prompt, result: list[Output], model: str, revision: str) -> Classified:
        logprobs = [each.prompt_logprobs.logprobs for each in result if each.prompt_logprobs is not None]
        probabilities = self._probabilities([math.fsum(each) for each in logprobs])
        likeliest = sorted(self._labels, key=lambda label: -probabilities[label])
        held = likeliest[:1]
        if self._threshold is not None:
            held = [label for label in likeliest if probabilities[label] >= self._threshold]
        return Classified(
            id=prompt.id,
            labels=held,
            probabilities=probabilities,
            model=model,
            revision=revision,
            columns=prompt.columns,
            **spent(result),
        )

    def _probabilities(self, logprobs: list[float]) -> dict[str, float]:
        if self._threshold is None:
            return dict(zip(self._labels, softmax(logprobs), strict=True))
        pairs = zip(logprobs[::2], logprobs[1::2], strict=True)
        return {label: softmax(pair)[0] for label, pair in zip(self._labels, pairs, strict=True)}


def softmax(logprobs: Sequence[float]) -> list[float]:
    """Probabilities from log-probabilities of alternatives that exclude each other."""
    largest = max(logprobs)
    shares = [math.exp(logprob - largest) for logprob in logprobs]
    return [share / math.fsum(shares) for share in shares]


def _threshold(given: float | None, multiple: bool) -> float | None:
    """None where labels exclude each other; raises ConfigError."""
    if not multiple:
        if given is not None:
            raise ConfigError(
                f"threshold={shown(given)} needs multiple=True: without it the likeliest label alone holds"
            )
        return None
    threshold = DEFAULT_THRESHOLD if given is None else given
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold={shown(threshold)}: takes more than 0 and less than 1")
    return threshold


def _checked(labels: Sequence[str] | Mapping[str, str], multiple: bool) -> dict[str, str]:
    """A mapping from each label to its meaning. Raises ConfigError."""
    given = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else []
    if not given or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"labels={labels!r}: takes one or more strings")
    if twice := [label for label, times in Counter(given).items() if times > 1]:
        raise ConfigError(f"labels: {twice[0]!r} is there twice: takes labels that differ")
    if not all(label.strip() for label in given):
        raise ConfigError(f"labels={labels!r}: takes no empty ones")
    if len(given) == 1 and not multiple:
        raise ConfigError(f"labels={labels!r}: takes two or more, or one with multiple (--multiple)")
    return dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(given, "")


def _record(said: Mapping[str, str], multiple: bool) -> Record:
    """What an answer is, as the prompt lists it."""
    if multiple:
        members = [
            Member(f"label_{at}", bare("boolean"), label, hint=hint) for at, (label, hint) in enumerate(said.items())
        ]
        return Record("Labels", tuple(members))
    hints = "; ".join(f"{label}: {hint}" for label, hint in said.items() if hint)
    return Record("Label", (Member(LABEL, choice(list(said)), LABEL, hint=hints),))


def _answer(given: str | Sequence[str], said: Mapping[str, str], multiple: bool) -> dict[str, Any]:
    labels = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(label, str) for label in labels):
        raise ConfigError(f"example: {shown(given)}: takes {'a list of labels' if multiple else 'a label'}")
    if (not multiple and len(labels) != 1) or not set(labels) <= said.keys():
        raise ConfigError(f"example: labels {labels}: takes {'some' if multiple else 'one'} of {', '.join(said)}")
    return {label: label in labels for label in said} if multiple else {LABEL: labels[0]}


def _one(key: str, value: str | bool) -> str:
    leaf = choice([value])
    return example_answer(Record("Answer", (Member("answer", leaf, key),)), {key: value})


def _row(found: Classified) -> Classification:
    return Classification(
        id=found.id,
        label=found.labels[0] if found.labels else None,
        labels=found.labels,
        probabilities=found.probabilities,
        columns=msgspec.json.encode(found.columns).decode(),
        model=found.model,
        revision=found.revision,
    )

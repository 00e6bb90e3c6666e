"""The names that a user imports.

    from millrace import Extract, Generate, ModelConfig, ReadPrompts, SamplingParams, WriteCompletions

A name is loaded when it is first used, so `import millrace` costs nothing: the model manager and `millrace ps` never
load Beam. The folders beside this file are links to the project's four layers, which stand at the top of a checkout.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model_manager.wire.config import ManagerConfig, ModelConfig
    from .model_manager.wire.constraint import Constraint
    from .model_manager.wire.sampling import SamplingParams
    from .model_manager.wire.traces import Traces
    from .pipelines.runners.local_runner import FnApiRunner
    from .transforms.classify import Classify
    from .transforms.elements.classification import Classification
    from .transforms.elements.completions import Completion, DeadLetter, Prompt
    from .transforms.elements.task_results import Embedded, Scored
    from .transforms.embed import Embed
    from .transforms.extract import Extract
    from .transforms.generate import Generate
    from .transforms.model_handler import ManagedModelHandler
    from .transforms.models.updates import WatchedFile
    from .transforms.reading.read_prompts import ReadPrompts
    from .transforms.score import Score
    from .transforms.streams.kafka.reader import ReadKafka
    from .transforms.streams.kafka.writer import WriteKafka
    from .transforms.streams.pubsub.reader import ReadPubSub
    from .transforms.streams.pubsub.writer import WritePubSub
    from .transforms.streams.watch import WatchPrompts
    from .transforms.streams.windowed_files import WriteWindowedFiles
    from .transforms.typed.shapes import Ask, Span
    from .transforms.writing.resume import SkipCompleted
    from .transforms.writing.write_big_query import WriteBigQuery
    from .transforms.writing.write_completions import WriteCompletions
    from .transforms.writing.write_table import WriteTable

__all__ = [
    "Ask",
    "Classification",
    "Classify",
    "Completion",
    "Constraint",
    "DeadLetter",
    "Embed",
    "Embedded",
    "Extract",
    "FnApiRunner",
    "Generate",
    "ManagedModelHandler",
    "ManagerConfig",
    "ModelConfig",
    "Prompt",
    "ReadKafka",
    "ReadPrompts",
    "ReadPubSub",
    "SamplingParams",
    "Score",
    "Scored",
    "SkipCompleted",
    "Span",
    "Traces",
    "WatchPrompts",
    "WatchedFile",
    "WriteBigQuery",
    "WriteCompletions",
    "WriteKafka",
    "WritePubSub",
    "WriteTable",
    "WriteWindowedFiles",
]

_MODULES = {
    "model_manager.wire.config": ("ManagerConfig", "ModelConfig"),
    "model_manager.wire.constraint": ("Constraint",),
    "model_manager.wire.sampling": ("SamplingParams",),
    "model_manager.wire.traces": ("Traces",),
    "pipelines.runners.local_runner": ("FnApiRunner",),
    "transforms.classify": ("Classify",),
    "transforms.elements.classification": ("Classification",),
    "transforms.elements.completions": ("Completion", "DeadLetter", "Prompt"),
    "transforms.elements.task_results": ("Embedded", "Scored"),
    "transforms.embed": ("Embed",),
    "transforms.extract": ("Extract",),
    "transforms.generate": ("Generate",),
    "transforms.model_handler": ("ManagedModelHandler",),
    "transforms.models.updates": ("WatchedFile",),
    "transforms.reading.read_prompts": ("ReadPrompts",),
    "transforms.score": ("Score",),
    "transforms.streams.kafka.reader": ("ReadKafka",),
    "transforms.streams.kafka.writer": ("WriteKafka",),
    "transforms.streams.pubsub.reader": ("ReadPubSub",),
    "transforms.streams.pubsub.writer": ("WritePubSub",),
    "transforms.streams.watch": ("WatchPrompts",),
    "transforms.streams.windowed_files": ("WriteWindowedFiles",),
    "transforms.typed.shapes": ("Ask", "Span"),
    "transforms.writing.resume": ("SkipCompleted",),
    "transforms.writing.write_big_query": ("WriteBigQuery",),
    "transforms.writing.write_completions": ("WriteCompletions",),
    "transforms.writing.write_table": ("WriteTable",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # a slow import

        return version("beam-millrace")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

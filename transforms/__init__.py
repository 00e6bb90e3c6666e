"""The PTransforms that a user imports.

from transforms import Generate, ReadPrompts, SamplingParams, WriteCompletions

ManagedModelHandler stands in transforms.model_handler: importing Beam's RunInference takes as long as all the rest.
"""

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.sampling import SamplingParams
from transforms.classification import Classification
from transforms.classify import Classify
from transforms.elements import Completion, DeadLetter, Prompt
from transforms.embed import Embed
from transforms.extract import Extract
from transforms.generate import Generate
from transforms.model_updates import WatchedFile
from transforms.read import ReadPrompts
from transforms.resume import SkipCompleted
from transforms.score import Score
from transforms.streams.watch import WatchPrompts
from transforms.streams.windowed_files import WriteWindowedFiles
from transforms.task_elements import Embedded, Scored
from transforms.typed.shapes import Ask, Span
from transforms.write import WriteCompletions
from transforms.write_big_query import WriteBigQuery
from transforms.write_table import WriteTable

__all__ = [
    "Ask",
    "Classification",
    "Classify",
    "Completion",
    "DeadLetter",
    "Embed",
    "Embedded",
    "Extract",
    "Generate",
    "ManagerConfig",
    "ModelConfig",
    "Prompt",
    "ReadPrompts",
    "SamplingParams",
    "Score",
    "Scored",
    "SkipCompleted",
    "Span",
    "WatchPrompts",
    "WatchedFile",
    "WriteBigQuery",
    "WriteCompletions",
    "WriteTable",
    "WriteWindowedFiles",
]

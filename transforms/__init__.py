"""The PTransforms that a user imports.

from transforms import Generate, ReadPrompts, SamplingParams, WriteCompletions

ManagedModelHandler stands in transforms.model_handler: importing Beam's RunInference takes as long as all the rest.
"""

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.sampling import SamplingParams
from transforms.elements import Completion, DeadLetter, Prompt
from transforms.embed import Embed
from transforms.generate import Generate
from transforms.read import ReadPrompts
from transforms.resume import SkipCompleted
from transforms.score import Score
from transforms.task_elements import Embedded, Scored
from transforms.write import WriteCompletions

__all__ = [
    "Completion",
    "DeadLetter",
    "Embed",
    "Embedded",
    "Generate",
    "ManagerConfig",
    "ModelConfig",
    "Prompt",
    "ReadPrompts",
    "SamplingParams",
    "Score",
    "Scored",
    "SkipCompleted",
    "WriteCompletions",
]

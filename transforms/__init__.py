"""The PTransforms that a user imports.

from transforms import Generate, ReadPrompts, SamplingParams, WriteCompletions

ManagedModelHandler stands in transforms.model_handler: importing Beam's RunInference takes as long as all the rest.
"""

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.sampling import SamplingParams
from transforms.elements import Completion, DeadLetter, Prompt
from transforms.generate import Generate
from transforms.read import ReadPrompts
from transforms.resume import SkipCompleted
from transforms.write import WriteCompletions

__all__ = [
    "Completion",
    "DeadLetter",
    "Generate",
    "ManagerConfig",
    "ModelConfig",
    "Prompt",
    "ReadPrompts",
    "SamplingParams",
    "SkipCompleted",
    "WriteCompletions",
]

"""Checks that the engine can do the task with its parameters: one error before the job, not a dead letter a row."""

from __future__ import annotations

from millrace.model_manager.store.gguf import check_files
from millrace.model_manager.wire.backends import BACKENDS
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.dialect_parameters import dialect_parameters
from millrace.model_manager.wire.errors import ConfigError, InvalidRequest
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.model_manager.wire.server_options import connection_of


def check_asked(model: ModelConfig, task: str, params: SamplingParams) -> None:
    """Raises ConfigError for a task, parameters, a model's files or options that the engine does not take.

    Options that only the engine's own package knows are checked where it starts.
    """
    backend = BACKENDS[model.backend]
    backend.check_task(task)
    check_files(model.model, backend)
    try:
        connection = connection_of(model.backend, model.backend_options)
        dialect = None if connection is None else dialect_parameters(connection)
    except ConfigError as error:
        raise ConfigError(f"backend_options: {error}") from None
    try:
        backend.check_params(params)
        if dialect is not None and task != "embed":
            dialect.check(params)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from None

"""Fixtures of the tests of constraints."""

import pytest

from millrace.model_manager.grammars.compiling import GrammarCompiler
from tests.model_manager.engine.constraints.letters import grammars


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    return grammars(tmp_path_factory.mktemp("letters"))

"""What `import millrace` gives, and what it does not load."""

import subprocess
import sys

import pytest

import millrace


def test_every_name_is_there() -> None:
    assert [name for name in millrace.__all__ if not hasattr(millrace, name)] == []
    assert set(millrace.__all__) <= set(dir(millrace))


def test_the_import_loads_neither_beam_nor_torch() -> None:
    loaded = "any(name in sys.modules for name in ('apache_beam', 'torch'))"
    settings = "Constraint, ManagerConfig, ModelConfig, SamplingParams, Traces"
    code = f"import sys; from millrace import {settings}; sys.exit({loaded})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'Nothing'"):
        _ = millrace.Nothing


@pytest.mark.parametrize("layer", ["transforms", "serving", "pipelines", "model_manager"])
def test_a_layer_by_itself_is_refused_in_a_checkout(layer: str) -> None:
    """It would be a second copy, whose classes are other classes than millrace's."""
    with pytest.raises(ImportError, match=f"import millrace.{layer}"):
        __import__(layer)

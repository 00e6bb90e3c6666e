"""The template's own process: what it imports leaves it able to fork."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from millrace.model_manager.engine import template
template._import()
first = template._is_alone(), "transformers" in sys.modules
template._import_transformers()
print(*first, template._is_alone(), "transformers" in sys.modules)
"""


def test_imports_start_no_thread_and_transformers_come_last() -> None:
    """A fork would copy one thread, and leave locked what the others held."""
    shown = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["True", "False", "True", "True"]

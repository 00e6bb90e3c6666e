"""Where a machine keeps fetched files and what it found out about them."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`MILLRACE_CACHE_DIR`, else ~/.cache/millrace."""
    named = os.environ.get("MILLRACE_CACHE_DIR")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "millrace"

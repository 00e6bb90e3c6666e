"""What back ends read of a model's folder, without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def eos_token_ids(folder: Path) -> list[int]:
    """The tokens that end an answer: the generation config's, else the config's."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id")
        if found is not None:
            return [int(each) for each in found] if isinstance(found, list) else [int(found)]
    return []


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty where there is none."""
    if not path.is_file():
        return {}
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields

"""One way to write a value down: equal values, equal bytes, in any process. Knows no message."""

from __future__ import annotations

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys; keys that are numbers (token ids) become strings, which is how JSON has them anyway."""
    return _encoder.encode(msgspec.to_builtins(value, str_keys=True))

"""`backend_options` that only the engine knows: their names and types are checked as it loads. Knows no engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from ..wire.config import Option
from ..wire.conversion import nearest, unknown
from ..wire.errors import ConfigError

_SHOWN = 20
"""Names of options in an error; vLLM has two hundred."""
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def check_names(
    options: Mapping[str, Option],
    known: Collection[str],
    engine: str,
    decided: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises ConfigError for an option that the engine lacks, or that a setting of ModelConfig decides: `decided` has
    the setting of each such option.
    """
    free = [name for name in known if name not in decided]
    for name in options:
        if name not in known:
            told = unknown(name, free, what=f"option of {engine}", near=lambda text: nearest(text, known), most=_SHOWN)
            raise ConfigError(f"backend_options: {told}")
        if name in decided:
            setting = decided[name]
            raise ConfigError(
                f"backend_options: {name}={options[name]!r}: the setting {setting} decides it: give --{setting}"
                f" instead, in Python ModelConfig({setting}=…)"
            )


def in_range(name: str, value: Option, least: int, most: int) -> None:
    """Raises ConfigError for a number outside the option's range."""
    assert isinstance(value, int)
    if not least <= value <= most:
        raise ConfigError(f"backend_options: {name}={value!r}: takes {least} to {most}")


def of_type(name: str, value: Option, default: Any) -> Option:
    """The value, if it has the type of the option's default; raises ConfigError for another."""
    kind = type(default)
    if kind is float and type(value) is int:
        return float(value)
    if kind not in _WORDS:
        raise ConfigError(f"backend_options: {name}={value!r}: cannot be set from here")
    if type(value) is not kind:
        raise ConfigError(f"backend_options: {name}={value!r}: takes {_WORDS[kind]}")
    return value

"""Tells whoever reads the log which settings were asked for and do not hold."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from ..wire.shared_settings import UnmetSetting, sentence

log = logging.getLogger(__name__)


def warn_of_unmet(model: str, unmet: Sequence[UnmetSetting]) -> None:
    """One warning that names them all; the same one only once a process, however many clients it has."""
    if unmet:
        _warn(sentence(model, unmet))


@cache
def _warn(text: str) -> None:
    log.warning("%s", text)

"""argparse, with one sentence for what is wrong."""

from __future__ import annotations

import argparse
from typing import NoReturn

from millrace.model_manager.wire.errors import ConfigError


class FlagParser(argparse.ArgumentParser):
    """Raises ConfigError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

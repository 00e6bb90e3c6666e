"""Clients of Pub/Sub, and what is said where there can be none, or Pub/Sub has not what an address names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError

from millrace.model_manager.wire.errors import ConfigError, MillraceError

from ...addresses import PubSubAddress

_Client = TypeVar("_Client")


class PubSubFailed(MillraceError):
    """Pub/Sub refused a request; the runner decides whether to try again."""


def client_of(address: PubSubAddress, make: Callable[[], _Client]) -> _Client:
    """What `make` makes. Raises ConfigError where neither credentials nor an emulator are to be had."""
    try:
        return make()
    except DefaultCredentialsError:
        raise ConfigError(
            f"{address}: this machine has no credentials for Google Cloud: name a key file by "
            "GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'; for an emulator, set "
            "PUBSUB_EMULATOR_HOST to its HOST:PORT"
        ) from None


@contextmanager
def said_of(address: PubSubAddress) -> Iterator[None]:
    """Raise ConfigError for what Pub/Sub does not have, or does not allow."""
    try:
        yield
    except exceptions.NotFound:
        what = "topic" if address.is_topic else "subscription"
        raise ConfigError(f"{address}: not found: there is no such {what}") from None
    except exceptions.Forbidden as error:
        raise ConfigError(f"{address}: {error.message}") from None

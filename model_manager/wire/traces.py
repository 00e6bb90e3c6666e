"""Where spans of rows and requests go, and how many of them. Imports no OpenTelemetry, which few jobs need."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from .conversion import SettingsMeta, check_types, shown
from .errors import ConfigError

ROUTE = "/v1/traces"
"""The path of OTLP over HTTP, behind a collector's address."""


class Traces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=SettingsMeta):
    """A collector of OpenTelemetry's, and the share of rows that it hears of.

    Raises ConfigError, naming the setting, for a value outside its range.
    """

    endpoint: str
    """Address of the collector, such as http://localhost:4318, or the whole URL of its route for traces."""
    ratio: float = 1.0
    """Share of rows and requests whose spans are sent, 0 to 1. A caller's own decision (`traceparent`) is stronger."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        try:
            parts = urlsplit(self.endpoint)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url:
            raise ConfigError(f"otlp_endpoint={self.endpoint!r}: takes a URL: http://HOST:4318")
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"trace_ratio={shown(self.ratio)}: takes 0 to 1")

    @property
    def url(self) -> str:
        """Where spans are sent to."""
        address = self.endpoint.rstrip("/")
        return address if urlsplit(address).path else address + ROUTE

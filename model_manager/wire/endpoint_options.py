"""Options of the back end `endpoint`, parsed once. Knows names and ranges; sends nothing.

The key itself is no option: it would stand in the job's graph. `key_env` names the environment variable that holds it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import msgspec

from .conversion import check, converted
from .errors import ConfigError

_GRPC = ("grpc", "grpcs")
_URLS = "http://, https://, grpc:// or grpcs:// URLs"
DialectName = Literal[
    "openai",
    "openai-completions",
    "tgi",
    "triton",
    "kserve",
    "llama-completion",
    "mii-chat",
    "mii-completions",
    "mii",
]


class EndpointOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the servers are, what they speak, and how patient their client is. Times are in seconds.

    Raises ConfigError, naming the option, for a value outside its range.
    """

    urls: str
    """One or more base URLs, with commas between them. Requests go to the one with the least outstanding work.

    http:// and https:// go over HTTP; grpc:// and grpcs:// (with TLS) go over gRPC, in the dialect kserve.
    """
    dialect: DialectName = "openai"
    """What they speak: the routes of OpenAI's chat or completions, TGI, Triton's generate, KServe v2, llama.cpp or
    DeepSpeed-MII."""
    key_env: str = ""
    """Environment variable that holds the API key; empty sends none."""
    key_header: str = "Authorization"
    """Header of the key: Authorization carries `Bearer KEY`, any other the key alone."""
    timeout: float = 600.0
    """Longest time for one try, from its first byte to the last byte of its answer."""
    connect_timeout: float = 10.0
    """Longest time to connect."""
    retries: int = 5
    """Most further tries of a request. Waits that a server asks for (429) are not counted."""
    down_timeout: float = 600.0
    """The job fails when no server has answered anything for so long, "busy" and health routes included."""
    requests_per_minute: float = 0.0
    """Most requests a minute, over all servers; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Most tokens a minute, prompts and answers together, over all servers; 0 is no limit."""
    max_connections: int = 64
    """Most requests in flight at one server."""
    extra_parameters: str = ""
    """Sampling parameters beyond OpenAI's that the servers take by vLLM's names, with commas between them. With
    `return_token_ids` answers are read as streams of token ids, from which another try goes on."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What an OpenAI server calls the most tokens of an answer."""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout", "down_timeout"):
            check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a finite number above 0")
        for name in ("requests_per_minute", "tokens_per_minute"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < math.inf, "a finite number, 0 for no limit")
        check("retries", self.retries, 0 <= self.retries <= 100, "0 to 100")
        check("max_connections", self.max_connections, 1 <= self.max_connections <= 4096, "1 to 4096")
        check("urls", self.urls, bool(self.addresses), f"{_URLS}, with commas between them")
        for url in self.addresses:
            _check_url(url)
        kinds = {urlsplit(url).scheme in _GRPC for url in self.addresses}
        check("urls", self.urls, len(kinds) == 1, "URLs of HTTP or of gRPC, not both")
        if self.over_grpc:
            check("dialect", self.dialect, self.dialect == "kserve", "kserve with grpc:// URLs")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Read `backend_options`. Raises ConfigError for an unknown name, a wrong type or an impossible value."""
        return converted(fields, cls, ConfigError, what="option of the back end endpoint")

    @property
    def addresses(self) -> list[str]:
        """Each base URL, without a slash at its end."""
        return [each.rstrip("/") for each in listed(self.urls)]

    @property
    def over_grpc(self) -> bool:
        """Whether the servers are asked over gRPC."""
        return any(urlsplit(url).scheme in _GRPC for url in self.addresses)

    @property
    def takes_seeds(self) -> bool:
        """Whether rows may be given seeds. What a model of KServe or Triton has inputs for, its server alone says; MII
        takes none.
        """
        return self.dialect not in ("triton", "kserve", "mii-chat", "mii-completions", "mii")

    def key(self) -> str:
        """The key; empty if none is sent. Raises ConfigError if its variable is not set."""
        if not self.key_env:
            return ""
        found = os.environ.get(self.key_env, "").strip()
        where = "the name of a variable that is set where the engine runs"
        check("backend_options: key_env", self.key_env, bool(found), where)
        whole = "a variable whose value is one line, without control characters"
        check("backend_options: key_env", self.key_env, found.isprintable(), whole)
        return found

    def headers(self, key: str) -> dict[str, str]:
        """What carries the key; nothing if it is empty."""
        bearer = self.key_header.lower() == "authorization"
        return {self.key_header: f"Bearer {key}" if bearer else key} if key else {}


def listed(text: str) -> list[str]:
    """The parts of a list that is written with commas or spaces."""
    return [each for each in re.split(r"[,\s]+", text) if each]


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        bare = url.rpartition("@")[2].partition("?")[0]  # a key may stand in the other parts
        raise ConfigError(f"urls={bare!r}: takes {_URLS}: {error}") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        bare = f"{parts.scheme}://{parts.hostname}"
        raise ConfigError(
            f"urls: {bare}…: takes no user, query or fragment;"
            " name the key's variable in the option key_env (--backend_options key_env=NAME)"
        )
    check("urls", url, parts.scheme in ("http", "https", *_GRPC) and bool(parts.hostname), _URLS)
    if parts.scheme in _GRPC:
        check("urls", url, bool(parts.port) and not parts.path, f"{parts.scheme}://HOST:PORT")

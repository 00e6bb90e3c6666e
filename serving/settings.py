"""Settings of the server, parsed once at the edge. Flags are made of the fields and their docstrings."""

from __future__ import annotations

import math

import msgspec

from millrace.model_manager.wire.conversion import check, check_types
from millrace.model_manager.wire.errors import ConfigError

_ABOVE_0 = (
    "max_body_mib",
    "max_bodies_mib",
    "request_timeout",
    "body_timeout",
    "stall_timeout",
    "shutdown_timeout",
    "max_file_mib",
    "max_files_gib",
)
"""Settings of the server that take a finite number above 0."""


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where `millrace metrics` listens. Raises ConfigError, naming the setting, for a value outside its range."""

    host: str = "127.0.0.1"
    """Address to listen on. The command has no authentication; do not expose it."""
    port: int = 9400
    """Port to listen on; 0 takes a free one."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        _check_port(self.port)


class TopConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `millrace top` looks. Raises ConfigError, naming the setting, for a value outside its range."""

    interval: float = 1.0
    """Seconds between two frames in a terminal."""
    port: int = 9401
    """Port of --web, on 127.0.0.1; 0 takes a free one."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        check("interval", self.interval, 0.1 <= self.interval <= 3600, "0.1 to 3600 seconds")
        _check_port(self.port)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server listens, who may ask, and how much; all times in seconds.

    Raises ConfigError, naming the setting, for a value outside its range.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Without --api_key_file the server has no authentication; do not expose it."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: str | None = None
    """Name of the model in requests and answers. Default: the value of --model."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters to serve, each as NAME=PATH: a request whose model is NAME is answered with that adapter. PATH is a
    folder, a hub name or `gs://bucket/folder`. --max_loras is their number by default."""
    api_key_file: str | None = None
    """File with one API key per line; a request needs one of them as `Authorization: Bearer KEY`."""
    max_inflight: int = 2048
    """Requests answered at once; further ones get status 429. One request may ask for at most this many answers: n for
    each of its prompts."""
    max_tokens: int | None = None
    """Most tokens of one answer; a request that asks for more gets status 400. Unlike --max_model_len it leaves the
    model as it is, so jobs without it share the engine. Default: what the model has room for."""
    max_body_mib: float = 32.0
    """Largest body of a request, in MiB; a larger one gets status 413."""
    max_bodies_mib: float = 256.0
    """Memory for all request bodies being read, in MiB; a body that finds no room gets status 429."""
    body_timeout: float = 60.0
    """Time for a request's body to arrive; then status 408."""
    request_timeout: float = 600.0
    """Time for a request, from its arrival to the end of its answer; then status 504."""
    stall_timeout: float = 60.0
    """Time that a client may leave an answer unread; then its request is cancelled and its connection closed."""
    shutdown_timeout: float = 30.0
    """Time for running requests to end after SIGTERM or Ctrl-C; then they are cancelled."""
    ssl_certfile: str | None = None
    """PEM file with the certificate chain, to serve over TLS; needs --ssl_keyfile."""
    ssl_keyfile: str | None = None
    """PEM file with the certificate's private key; needs --ssl_certfile."""
    cors_origin: tuple[str, ...] = ()
    """Origins whose pages may send requests from a browser, such as https://app.example; * is any. Default: none.
    Needed behind a proxy on this machine that forwards the client's Host header, unless --api_key_file is given."""
    files_dir: str | None = None
    """Folder for uploaded files and batches; they outlive the server. Default: the folder serve in millrace's cache."""
    max_file_mib: float = 256.0
    """Largest file to upload, in MiB; a larger one gets status 413."""
    max_files_gib: float = 16.0
    """Disk space for the files and batches of all keys, in GiB; further ones get status 400."""
    max_uploads: int = 32
    """Files uploaded at once; further ones get status 429. A client without any has one among twice as many."""
    max_batches: int = 2
    """Batches that run at once, each as its own job; further ones wait."""
    max_batch_rows: int = 50_000
    """Most prompts in a batch; a batch with more fails."""

    def __post_init__(self) -> None:
        check_types(self, ConfigError)
        _check_port(self.port)
        check("max_inflight", self.max_inflight, self.max_inflight >= 1, "1 or more")
        check("served_model_name", self.served_model_name, self.served_model_name != "", "a name of 1 or more letters")
        check("max_tokens", self.max_tokens, self.max_tokens is None or self.max_tokens >= 1, "1 or more")
        _check_adapters(self.adapters)
        folder = self.files_dir
        holds = folder is None or (folder != "" and not set("*?[]") & set(folder))
        check("files_dir", folder, holds, "a folder whose path has none of * ? [ ], which jobs take for patterns")
        for name in ("max_uploads", "max_batches", "max_batch_rows"):
            check(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        for name in _ABOVE_0:
            check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a finite number above 0")
        for name, other in (("ssl_certfile", "ssl_keyfile"), ("ssl_keyfile", "ssl_certfile")):
            given = getattr(self, name)
            check(name, given, given is None or getattr(self, other) is not None, f"--{other} beside it")

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Paths of the adapters, by their names."""
        return dict(map(_name_and_path, self.adapters))

    @property
    def most_bytes(self) -> int:
        """Largest body of a request."""
        return int(self.max_body_mib * 2**20)

    @property
    def most_file_bytes(self) -> int:
        """Largest file to upload."""
        return int(self.max_file_mib * 2**20)

    @property
    def most_kept(self) -> int:
        """Bytes that files and batches may take."""
        return int(self.max_files_gib * 2**30)

    @property
    def most_bytes_of_all(self) -> int:
        """Memory for all bodies that are being read; room for one of the largest at least."""
        return max(self.most_bytes, int(self.max_bodies_mib * 2**20))


def _name_and_path(pair: str) -> tuple[str, str]:
    name, _, path = pair.partition("=")
    return name, path


def _check_adapters(pairs: tuple[str, ...]) -> None:
    seen = set()
    for pair in pairs:
        name, path = _name_and_path(pair)
        check("adapters", pair, bool(name and path), "NAME=PATH, such as spam=/models/spam-lora")
        check("adapters", pair, name not in seen, f"each name once; {name} is there twice")
        seen.add(name)


def _check_port(port: int) -> None:
    check("port", port, 0 <= port < 2**16, "0 (a free one) to 65535")

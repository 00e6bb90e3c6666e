"""Checks the files for TLS, so that an error names the flag of the file that is wrong."""

from __future__ import annotations

import ssl
from pathlib import Path

from millrace.model_manager.wire.errors import ConfigError

_BEGINS = b"-----BEGIN "


def check_tls(certfile: str | None, keyfile: str | None) -> None:
    """Raises ConfigError for a certificate chain or a key that cannot be used; nothing to do where none is given."""
    if certfile is None or keyfile is None:
        return
    _check_pem("ssl_certfile", certfile)
    _check_pem("ssl_keyfile", keyfile)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certfile)
    except ssl.SSLError as error:
        raise ConfigError(f"ssl_certfile={certfile!r}: holds no certificate that can be read: {_said(error)}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, _refuse_password)
    except _Encrypted:
        said = "takes a key without a passphrase"
        raise ConfigError(f"ssl_keyfile={keyfile!r}: {said}") from None
    except ssl.SSLError as error:
        said = f"holds no private key of the certificate in {certfile!r}"
        raise ConfigError(f"ssl_keyfile={keyfile!r}: {said}: {_said(error)}") from None


class _Encrypted(Exception):
    """A key has a passphrase; OpenSSL would ask the terminal for it."""


def _refuse_password() -> str:
    raise _Encrypted


def _check_pem(name: str, path: str) -> None:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path!r}: {error.strerror}; takes a file in PEM format") from None
    if _BEGINS not in data:
        raise ConfigError(f"{name}={path!r}: takes a PEM file, whose text begins with -----BEGIN")


def _said(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()

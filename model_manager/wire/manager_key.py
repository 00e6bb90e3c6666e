"""The key of a manager that listens on TCP: a private key with its own certificate, in one PEM file.

Manager and clients hold the same file. Each side of a TLS 1.3 connection presents the certificate, and accepts no
other: whoever connects has proved that it holds the key, and so has whoever listens.
"""

from __future__ import annotations

import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

from .errors import ConfigError

_NAME = "millrace manager"
_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_DAY = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""What RFC 5280 has for a certificate that does not expire. A key is replaced by another file."""


def client_context(key_file: Path) -> ssl.SSLContext:
    """What a client connects with; raises ConfigError, as `check_key` does."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, key_file)


def server_context(key_file: Path) -> ssl.SSLContext:
    """What a manager accepts connections with; raises ConfigError, as `check_key` does."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, key_file)
    _check_date(key_file)
    context.num_tickets = 0  # no session is resumed
    return context


def _context(protocol: int, key_file: Path) -> ssl.SSLContext:
    check_key(key_file)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate stands for the key, whatever host holds it
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(key_file, password=_no_pass_phrase)
        context.load_verify_locations(key_file)
    except (ssl.SSLError, OSError):
        raise ConfigError(_no_key(key_file)) from None
    if context.cert_store_stats()["x509"] != 1:  # each would be let in
        raise ConfigError(_no_key(key_file))
    return context


def _check_date(key_file: Path) -> None:
    from cryptography import x509  # see _new_key

    last = x509.load_pem_x509_certificate(key_file.read_bytes()).not_valid_after_utc
    if last < datetime.now(UTC):
        raise ConfigError(_told(key_file, f"its certificate was valid until {last:%F}: make another key"))


def _no_pass_phrase() -> str:
    """Raise in place of asking for a pass phrase on the terminal."""
    raise OSError("the key is encrypted")


def _no_key(key_file: Path) -> str:
    made = f"make one with `millrace manager --make_key {key_file}`"
    return _told(key_file, f"is no private key with its certificate, and nothing else: {made}")


def check_key(key_file: Path) -> None:
    """Raises ConfigError for what is no file, is not there, or can be read by others."""
    try:
        found = key_file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(_told(key_file, "takes a regular file"))
        with key_file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(_told(key_file, f"cannot be read: {error.strerror}; takes the manager's key")) from None
    # Kubernetes gives a secret's files to root and the pod's group, so another owner's file may be the group's.
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    if found.st_mode & others:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(_told(key_file, f"takes a file of mode 600, it has {mode:o}: chmod 600 {key_file}"))


def make_key(key_file: Path) -> None:
    """Write a new key, of mode 600; raises ConfigError where the file is there already or cannot be written."""
    content = _new_key()
    try:
        written = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"--make_key {key_file}: cannot be written: {error.strerror}; takes the path of a new file"
        ) from None
    with os.fdopen(written, "wb") as file:
        file.write(content)


def _new_key() -> bytes:
    """PEM of a new private key and its certificate."""
    from cryptography import x509  # 0.1 s to import, which only new keys have to spend
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FIRST_DAY, _LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _told(key_file: Path, what: str) -> str:
    return f"manager_key_file={str(key_file)!r}: {what}"

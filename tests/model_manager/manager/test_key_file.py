"""The file of a manager's key: what is refused, by its name, and what is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from millrace.model_manager.client.engine_client import EngineClient
from millrace.model_manager.wire import manager_key
from millrace.model_manager.wire.config import ManagerConfig, ModelConfig
from millrace.model_manager.wire.errors import (
    ConfigError,
)
from millrace.model_manager.wire.manager_key import check_key, make_key, server_context

NO_KEY = "is no private key with its certificate, and nothing else: make one with `millrace"


def with_another(path: Path) -> None:
    """Append the certificate of another key."""
    make_key(path.with_name("another.pem"))
    another = path.with_name("another.pem").read_bytes()
    path.write_bytes(path.read_bytes() + another[another.index(b"-----BEGIN CERTIFICATE") :])


def encrypt(path: Path) -> None:
    """Give the key a pass phrase."""
    content = path.read_bytes()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"a")
    private = serialization.load_pem_private_key(content, None).private_bytes(*form)
    path.write_bytes(private + content[content.index(b"-----BEGIN CERTIFICATE") :])


def make_pipe(path: Path) -> None:
    """Put a pipe in the place of the key."""
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.chmod(0o644), "takes a file of mode 600, it has 644: chmod 600 "),
        (lambda path: path.unlink(), "cannot be read: No such file or directory"),
        (lambda path: path.write_text("garbage"), NO_KEY),
        (with_another, NO_KEY),
        (encrypt, NO_KEY),
        (make_pipe, "takes a regular file"),
    ],
    ids=["open to others", "missing", "damaged", "two certificates", "encrypted", "pipe"],
)
def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path, harm: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "manager.pem"
    make_key(path)
    harm(path)
    with pytest.raises(ConfigError, match=f"^manager_key_file='{path}': {said}"):
        server_context(path)
    with pytest.raises(ConfigError, match=f"^manager_key_file='{path}': {said}"):
        EngineClient.open(ModelConfig(), manager=ManagerConfig(manager="tcp://127.0.0.1:1", manager_key_file=str(path)))


def test_a_manager_does_not_start_with_a_certificate_that_has_expired(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager_key, "_LAST_DAY", datetime(2001, 1, 1, tzinfo=UTC))
        make_key(tmp_path / "old.pem")
    with pytest.raises(ConfigError, match=r"its certificate was valid until 2001-01-01: make another key$"):
        server_context(tmp_path / "old.pem")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's file")
def test_a_secret_of_kubernetes_is_the_pods_group_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "manager.pem"
    make_key(path)
    os.chown(path, 1234, 1234)
    path.chmod(0o440)
    check_key(path)
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="takes a file of mode 600, it has 444"):
        check_key(path)

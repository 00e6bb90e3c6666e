"""The files that flags name. Knows no flag's meaning."""

from __future__ import annotations

from apache_beam.io.filesystem import BeamIOError

from millrace.model_manager.wire.errors import ConfigError, MillraceError
from millrace.transforms.files.object_reads import open_file


def read_text(flag: str, path: str, hint: str = "") -> str:
    """A file's text, from any file system that Beam knows, without a byte order mark.

    `hint`: added to the error if there is no such file.
    """
    try:
        with open_file(path) as stream:
            return stream.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{flag} {path}: no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{flag} {path}: is a folder; takes a file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path}: takes UTF-8, got another byte at {error.start}") from None
    except (OSError, BeamIOError, MillraceError, ValueError) as error:
        raise ConfigError(f"{flag} {path}: {error}") from None

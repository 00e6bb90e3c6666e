"""A model's files from the Hugging Face hub, through its own client and cache.

HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and the token are that client's business; of several processes that want a file,
one fetches it and the others wait (its cache is locked).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..wire.errors import ModelCorrupt, ModelError, ModelNotFound
from .contents import UNWANTED, WANTED


def fetch(model: str, revision: str | None, wanted: Sequence[str] = WANTED) -> Path:
    """The folder of `org/name` at a branch, tag or commit, in the hub's cache: files of the `wanted` patterns.

    Raises ModelNotFound for a name or revision that is not there, also for one that is not cached when the hub is out
    of reach; ModelError where it denies access; ModelCorrupt for a download that does not match its size.
    """
    try:
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=list(wanted), ignore_patterns=list(UNWANTED))
        )
    except HFValidationError:
        raise ModelNotFound(
            f"--model {model}: is neither a folder here, nor a hub name (org/name), nor gs://bucket/folder"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFound(f"--model {model}: the hub has no revision {revision!r} of it") from None
    except GatedRepoError:
        raise ModelError(
            f"--model {model}: its owner asks for consent; give it on the model's page, and set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFound(
            f"--model {model}: no such folder here and no such model on the hub (if it is private, set HF_TOKEN)"
        ) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise ModelNotFound(
            f"--model {model}: is not in the hub's cache, and the hub is out of reach (or HF_HUB_OFFLINE is set);"
            " name a local folder, or fetch it while online"
        ) from None
    except HfHubHTTPError as error:
        raise ModelError(f"--model {model}: the hub answers: {error}") from None
    except Exception as error:  # what its transport raises depends on the HTTP library that its version uses
        raise _as_model_error(model, error) from error


def _as_model_error(model: str, error: Exception) -> ModelError:
    """The client reports a download of the wrong size as a plain OSError; anything else is the machine's."""
    if "consistency check" in str(error).lower():
        return ModelCorrupt(f"--model {model}: a file does not have the size that the hub announced; fetch it again")
    return ModelError(f"--model {model}: cannot be fetched: {type(error).__name__}: {error}")

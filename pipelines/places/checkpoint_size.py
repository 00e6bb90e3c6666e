"""The size of a model's weights in bytes, wherever they are, without fetching them."""

from __future__ import annotations

from millrace.model_manager.store.gguf import file_pattern, gguf_bytes
from millrace.model_manager.store.memory import file_bytes, weight_patterns
from millrace.model_manager.store.resolving import resolve_source
from millrace.model_manager.store.sources import Bucket, HubRepo, ModelSource, source_of
from millrace.model_manager.wire.errors import ModelError, ModelNotFound
from millrace.transforms.files.file_systems import match


def weights_bytes(model: str, revision: str | None = None, backend: str = "torch") -> int:
    """Bytes of all weight files together, of the back end's own format if the model is in it.

    Raises ModelError, in one sentence, if they cannot be listed.
    """
    source = source_of(model)
    if source.gguf and not source.is_remote:
        return gguf_bytes(model, resolve_source(source))
    sizes = _sizes(source.of_files(), revision, backend)
    patterns = (file_pattern(source.gguf),) if source.gguf else weight_patterns(sizes, backend)
    total = file_bytes(sizes, patterns)
    if not total:
        raise ModelNotFound(f"--model {model}: there are no {patterns[0].lstrip('*')} files")
    return total


def _sizes(source: ModelSource, revision: str | None, backend: str) -> dict[str, int]:
    """Bytes by the names of the files."""
    match source:
        case HubRepo():
            return _on_hub(source.name, revision)
        case Bucket():
            return {
                str(file.path).rsplit("/", 1)[-1]: file.size_in_bytes for file in match(f"{source.name.rstrip('/')}/*")
            }
        case _:
            return {path.name: path.stat().st_size for path in resolve_source(source, backend=backend).iterdir()}


def _on_hub(model: str, revision: str | None) -> dict[str, int]:
    from huggingface_hub import HfApi  # here: a job on this machine needs neither this module nor its seconds
    from huggingface_hub.hf_api import RepoFile

    try:
        entries = list(HfApi().list_repo_tree(model, revision=revision))
    except Exception as error:  # what its transport raises depends on the HTTP library that its version uses
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"--model {model}: the hub does not say how large it is: {why}") from None
    return {entry.path: entry.size for entry in entries if isinstance(entry, RepoFile)}

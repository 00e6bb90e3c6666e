"""Resolves a model's name: the local folder that its files are in or are fetched to.

`sources` parses the name; what fetching takes stands in `hub` and `bucket`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..wire.backends import BACKENDS
from ..wire.config import EMBEDDED_MODEL, cache_folder
from ..wire.conversion import did_you_mean, nearest
from ..wire.errors import ConfigError, ModelNotFound
from .contents import ADAPTER_FILES, TOKENIZER_FILES, WANTED, check, check_adapter, check_sizes
from .gguf import file_pattern, gguf_files, read_gguf
from .sources import Bucket, EmbeddedModel, HubRepo, LocalPath, ModelSource, source_of

_EMBEDDED = Path(__file__).resolve().with_name("embedded") / EMBEDDED_MODEL


def resolve(model: str, revision: str | None = None, *, backend: str = "torch", cache_dir: Path | None = None) -> Path:
    """The local folder of a model: config.json, tokenizer.json and safetensors weights, fetched if they are elsewhere;
    or a folder in the own format of the back end that is to load it.

    `model` is the embedded model's name, a folder, a hub name (`org/name`, at `revision`) or `gs://bucket/folder`; or a
    GGUF file in one of these (`org/name/file.gguf`), and then the folder is the one that holds the file. `cache_dir` is
    where buckets are fetched to: `MILLRACE_CACHE_DIR`, else ~/.cache/millrace, by default (the hub has its own cache,
    which HF_HOME names).

    Raises ModelNotFound, ModelCorrupt or ModelUnsupported, plain ModelError where access is denied, and ConfigError
    for a revision of what is not on the hub. Each text is one sentence that says what to change.
    """
    return resolve_source(source_of(model), revision, backend=backend, cache_dir=cache_dir)


def resolve_source(
    source: ModelSource, revision: str | None = None, *, backend: str = "torch", cache_dir: Path | None = None
) -> Path:
    """`resolve`, of a name that was parsed."""
    if revision is not None and not isinstance(source, HubRepo):
        raise ConfigError(f"revision={revision!r}: takes a hub name (org/name) as --model, and {source.name} is none")
    if source.gguf:
        return _holding(source, revision, cache_dir)
    wanted = (*WANTED, *BACKENDS[backend].own_files)
    return check(_local(source, revision, wanted, cache_dir), source.name, backend)


def resolve_tokenizer(model: str, revision: str | None = None, *, cache_dir: Path | None = None) -> Path:
    """The local folder of a model's tokenizer and settings, tokenizer.json included; fetches no weights."""
    return resolve_tokenizer_source(source_of(model), revision, cache_dir=cache_dir)


def resolve_tokenizer_source(
    source: ModelSource, revision: str | None = None, *, cache_dir: Path | None = None
) -> Path:
    """`resolve_tokenizer`, of a name that was parsed."""
    return _local(source, revision, TOKENIZER_FILES, cache_dir)


def resolve_adapter(name: str, *, cache_dir: Path | None = None) -> Path:
    """The local folder of a LoRA adapter, with adapter_config.json and adapter_model.safetensors."""
    return check_adapter(_local(source_of(name), None, ADAPTER_FILES, cache_dir), name)


def _local(source: ModelSource, revision: str | None, wanted: Sequence[str], cache_dir: Path | None) -> Path:
    """The local folder of a source; fetched from the hub or a bucket if it is there."""
    return check_sizes(_fetched(source, revision, wanted, cache_dir), source.name)


def _fetched(source: ModelSource, revision: str | None, wanted: Sequence[str], cache_dir: Path | None) -> Path:
    match source:
        case HubRepo():
            from .hub import fetch as from_hub  # 0.4 s to import, which only hub names have to spend

            return from_hub(source.name, revision, wanted)
        case Bucket():
            from .bucket import fetch as from_bucket  # 0.4 s to import, which only buckets have to spend

            return from_bucket(source, cache_dir or cache_folder(), wanted)
        case EmbeddedModel():
            return _EMBEDDED
        case LocalPath():
            return _folder(source.name)


def _holding(source: ModelSource, revision: str | None, cache_dir: Path | None) -> Path:
    """The local folder that holds a GGUF file with all its parts."""
    if source.is_remote:
        folder = _local(source.of_files(), revision, [file_pattern(source.gguf)], cache_dir)
    else:
        folder = Path(source.name).expanduser().parent.resolve()
    if not (path := folder / source.gguf).is_file():
        raise ModelNotFound(f"--model {source.name}: no such file{did_you_mean(_near_miss(path, '*.gguf'))}")
    for path in gguf_files(source.name, folder):
        read_gguf(path)
    return folder


def _folder(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise ModelNotFound(f"--model {model}: is a file; name the folder that holds config.json")
    takes = "takes a hub name (org/name), a folder or gs://bucket/folder"
    raise ModelNotFound(f"--model {model}: no such folder{did_you_mean(_near_miss(folder), takes)}")


def _near_miss(path: Path, files: str = "") -> str | None:
    """The folder, or the file of a pattern, that was probably meant."""
    neighbours = [EMBEDDED_MODEL]
    if path.parent.is_dir():
        found = path.parent.glob(files) if files else path.parent.iterdir()
        neighbours += [child.name for child in found if child.is_file() == bool(files)]
    return nearest(path.name, neighbours)

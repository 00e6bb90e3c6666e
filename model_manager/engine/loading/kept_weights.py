"""Packed weights of models, kept in the cache folder: a later load maps what the first one packed.

A model's folder, dtype and quantization have one file. It says what its weights were made of: the checkpoint's files,
the code, the processor. If any of these has changed, the file is written anew. A file is written under a name of its
own, under a lock, and renamed: one that is there is whole, and of two loads at the same time one writes. The least
recently used files are removed for new ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import torch

from ...wire.config import cache_folder
from ..cpu.decoder_plan import DecoderPlan
from ..cpu.decoder_weights import KeptTensors, Tensors
from ..cpu.matrix_ops import Format
from ..cpu.packed_file import DamagedFile, MappedWeights, OtherWeights, WrittenWeights
from .checkpoint import Checkpoint
from .placement import Placement
from .surroundings import surroundings

log = logging.getLogger(__name__)

_FOLDER = "packed"
_LEAST_BYTES = 2**25
"""Less is packed in a moment."""
_PART_OF_DISK = 10
"""All files together take at most a tenth of the disk, and at most half of what is free without them."""
_LONGEST_NAME = 80


class KeptWeights:
    """The file of one model's packed weights."""

    def __init__(self, placement: Placement, plan: DecoderPlan, fmt: Format) -> None:
        checkpoint = placement.checkpoint
        self._made_of = _made_of(checkpoint)
        self._num_threads = placement.num_threads
        self._size = _packed_bytes(plan, fmt, placement.dtype)
        place = f"{checkpoint.folder.resolve()}\0{placement.dtype}\0{fmt.name}"
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", placement.config.name.rsplit("/", 1)[-1])[-_LONGEST_NAME:]
        self._file = cache_folder() / _FOLDER / f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        self._unfinished = self._file.with_name(f"{self._file.name}.unfinished")

    def mapped(self) -> MappedWeights | None:
        """What an earlier load kept, if it is undamaged and of this very model."""
        try:
            with _opened(self._file) as file:
                weights = MappedWeights(file, self._made_of, self._num_threads)
                with suppress(OSError):  # of a folder that cannot be written nothing is removed either
                    os.utime(file.fileno())
        except (FileNotFoundError, NotADirectoryError, OtherWeights):
            return None
        except OSError as error:
            log.warning("%s: cannot be read (%s); the weights are packed again", self._file, error.strerror or error)
            return None
        except DamagedFile as error:
            log.warning("%s: is damaged (%s); the weights are packed again", self._file, error)
            return None
        return weights

    @contextmanager
    def keeping(self) -> Iterator[KeptTensors | None]:
        """Keeps what is put in meanwhile; None if nothing is to be kept. An error of the disk only costs a log line."""
        file = self._begun()
        if file is None:
            yield None
            return
        keeper = _Keeper(file, self._unfinished, self._file)
        try:
            yield keeper
            keeper.finish(self._made_of)
        finally:
            keeper.clean_up()
            with suppress(OSError):  # what a full disk did not take is written once more
                file.close()

    def _begun(self) -> BinaryIO | None:
        """The file to write to, locked; None if it is not to be written, or another process writes it."""
        if self._size < _LEAST_BYTES:
            return None
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = _locked(self._unfinished)
            if file is None or _make_room(self._size, for_files=(self._file, self._unfinished)):
                return file
            self._unfinished.unlink()
            file.close()
            _tell(self._file, f"{self._size >> 20} MiB are more than they may take of this disk")
        except OSError as error:
            _tell(self._file, error.strerror or error)
        return None


class _Keeper:
    """Writes tensors to a file, up to the first error."""

    def __init__(self, file: BinaryIO, unfinished: Path, finished: Path) -> None:
        """`file` is `unfinished`, which is to become `finished`."""
        self._weights = WrittenWeights(file)
        self._unfinished, self._finished = unfinished, finished
        self._is_over = False

    def tensors(self, name: str, make: Callable[[], Tensors]) -> Tensors:
        """The tensors that `make` makes, written under that name."""
        made = make()
        if not self._is_over:
            with self._over_at_an_error():
                self._weights.put(name, made)
        return made

    def finish(self, made_of: str) -> None:
        """Give the file its name, once all tensors are in it."""
        if not self._is_over:
            with self._over_at_an_error():
                self._weights.finish(made_of)
                self._unfinished.replace(self._finished)
                self._is_over = True

    def clean_up(self) -> None:
        """Remove a file that did not come to its name; the lock is still held."""
        if not self._is_over:
            self._give_up()

    @contextmanager
    def _over_at_an_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._give_up()
            _tell(self._finished, error.strerror or error)

    def _give_up(self) -> None:
        self._is_over = True
        with suppress(OSError):
            self._unfinished.unlink()


def _opened(file: Path) -> BinaryIO:
    """The file, open for reading. Opening a path that is no file (a pipe) does not block."""
    return os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _tell(file: Path, why: object) -> None:
    log.warning("%s: packed weights are not kept for the next load, which takes longer: %s", file, why)


def _locked(path: Path) -> BinaryIO | None:
    """The file, empty and locked; None if another process has it."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            raise FileNotFoundError(path)
        file.truncate(0)
    except (BlockingIOError, FileNotFoundError):  # being written, or renamed between opening and locking
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return file


def _make_room(size: int, *, for_files: Collection[Path]) -> bool:
    """Remove the least recently used of the other files until there is room for `size` bytes; False if that is more
    than there may be.
    """
    folder = next(iter(for_files)).parent
    others = sorted((each for each in _files(folder) if each.path not in for_files), key=lambda each: each.used)
    held = sum(each.size for each in others)
    disk = shutil.disk_usage(folder)
    most = min(disk.total // _PART_OF_DISK, (disk.free + held) // 2)
    if size > most:
        return False
    for each in others:
        if held + size > most and _is_removed(each.path):
            held -= each.size
    return held + size <= most


def _is_removed(file: Path) -> bool:
    """Remove it, but not what another process is writing."""
    try:
        with _opened(file) as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class _File(NamedTuple):
    path: Path
    size: int
    used: int


def _files(folder: Path) -> Iterator[_File]:
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            yield _File(path, status.st_size, status.st_mtime_ns)


def _packed_bytes(plan: DecoderPlan, fmt: Format, dtype: torch.dtype) -> int:
    """About the bytes of a model's packed weights and its embedding."""
    sizes = {name: math.prod(shape) for name, shape in plan.shapes.items()}
    packed = sum(sizes.values()) * fmt
    if plan.is_tied:
        return packed + (sizes[plan.tokens] * dtype.itemsize if fmt == Format.INT8 else 0)
    return packed + sizes[plan.tokens] * (dtype.itemsize - fmt)


def _made_of(checkpoint: Checkpoint) -> str:
    """All that packed weights depend on, besides what the name of their file says. A changed file has another time of
    change, whatever is done to its modification time.
    """
    files = sorted({file for file, _ in checkpoint.parameters.values()})
    status = {file.name: file.stat() for file in files}
    weights = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in status.items()]
    return msgspec.json.encode(surroundings(checkpoint.folder) | {"weights": weights}).decode()

"""What the files of an output are called, and which are there. Reads and writes only superseded.json.

<output>-00000-of-00003.jsonl                         completions (or .parquet, .csv)
<output>-resume1-00000-of-00001.jsonl                 completions that the first resumed run added
<output>-20240101T000000Z-20240101T010000Z-00000-of-00001.jsonl        completions of one window
<output>.dead_letters-00000-of-00001.jsonl            rows without a completion; no file when nothing failed
<output>.tmp/…                                        files of a job that runs, or was interrupted
<output>.tmp/superseded.json                          the files that a run with --overwrite will replace
<output>.report.html                                  what the job came to, for people (pipelines/job/report/)
.millrace/<name>.settings.json                        the settings that made the rows (places/provenance.py)
.millrace/<name>.launches.json                        of an unfinished job: what it has cost (pipelines/job/launches.py)
.millrace/<name>.claim                                which job writes them, while it runs (places/claims.py)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import msgspec
from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindow, IntervalWindow

from millrace.model_manager.wire.errors import ConfigError

from ..files.file_systems import create, exists, match, remove, remove_tree
from ..files.formats import OutputFormat
from ..files.object_reads import open_file

OutputKind = Literal["completions", "dead_letters"]
IfExists = Literal["refuse", "overwrite", "resume"]
_NOTES = ".millrace"
_SETTINGS = ".settings.json"
_TIME = r"\d{8}T\d{6}(?:\d{6})?Z"
_SHARD = re.compile(
    r"-(?:resume(?P<resume>\d+)-)?(?:salvaged-)?"
    rf"(?:{_TIME}-{_TIME}-)?(?:pane\d+-)?"
    r"\d{5,}-of-\d{5,}\.(?:jsonl|parquet|csv)"
)
"""What follows the prefix. Only what is written here: `out-2-00000-of-00001.jsonl` is no file of `out`."""


class OutputFiles:
    """The files of one output, by its prefix. Raises ConfigError for a prefix that cannot be one."""

    def __init__(self, output: str) -> None:
        """`output`: path prefix; one that ends in `/` is completed by `completions`."""
        if not output.strip() or set("*?[]") & set(output):
            raise ConfigError(f"output={output!r}: takes the beginning of the files' paths, without * ? [ ]")
        self.prefix = output + "completions" if output.endswith("/") else output
        self._folder, self._name = _split(self.prefix)
        if self._name in (".", ".."):
            raise ConfigError(f"output={output!r}: is a folder; takes the beginning of the files' paths in it")
        self.temporary = f"{self.prefix}.tmp"
        self.settings = f"{self._folder}{_NOTES}/{self._name}{_SETTINGS}"
        self.claim = f"{self._folder}{_NOTES}/{self._name}.claim"
        self.launches = f"{self._folder}{_NOTES}/{self._name}.launches.json"

    def existing(self, kind: OutputKind) -> list[str]:
        """Finished shards of a kind."""
        return [str(file.path) for file in self._found(kind)]

    def current(self, kind: OutputKind) -> list[str]:
        """Finished shards of a kind, without shards that an interrupted overwriting run was to replace."""
        superseded = self.superseded()
        return [path for path in self.existing(kind) if path not in superseded]

    def supersede(self) -> None:
        """Begin an overwriting run: what an earlier one left goes, and what is finished is marked until it is over."""
        remove_tree(self.temporary)
        if there := self.fingerprints():
            with create(self._mark) as stream:
                stream.write(msgspec.json.encode(there))

    def fingerprints(self) -> list[tuple[str, int, float]]:
        """Path, size and time of the finished shards: equal lists are unchanged files."""
        return [_fingerprint(file) for kind in get_args(OutputKind) for file in self._found(kind)]

    def is_marked(self) -> bool:
        """True if an overwriting run is to replace finished shards."""
        return exists(self._mark)

    def superseded(self) -> set[str]:
        """The marked files that are unchanged: a new file of the same name may have replaced one."""
        if not self.is_marked():
            return set()
        with open_file(self._mark) as stream:
            marked = set(msgspec.json.decode(stream.read(), type=list[tuple[str, int, float]]))
        found = [file for kind in get_args(OutputKind) for file in self._found(kind)]
        return {str(file.path) for file in found if _fingerprint(file) in marked}

    def clear(self, *, keep_mark: bool = False) -> None:
        """Remove temporary files; the mark first, or not at all, so that no mark outlives the files that it names."""
        if keep_mark and exists(self._mark):
            remove([str(file.path) for file in match(f"{self.temporary}/*/*")])
            remove([str(file.path) for file in match(f"{self.temporary}/building-*")])
            return
        remove([self._mark])
        remove_tree(self.temporary)

    def interrupted(self, kind: OutputKind) -> list[str]:
        """Shards that an interrupted run left."""
        return [str(file.path) for file in match(f"{self.temporary}/*/{kind}-*.jsonl")]

    def has_unfinished_rows(self) -> bool:
        """True if a run left more than dead letters, whose rows are tried again."""
        left = [str(file.path) for file in match(f"{self.temporary}/**")]
        return any(path != self._mark and "/dead_letters-" not in path for path in left)

    def temporary_shard(self, run: str, kind: OutputKind, name: str) -> str:
        """Where a bundle of a run writes."""
        return str(FileSystems.join(self.temporary, run, f"{kind}-{name}.jsonl"))

    def next_label(self) -> str:
        """The label that tells a resumed run's shards from the shards that are there."""
        shards = [
            self._shard_named(str(file.path), kind)
            for kind in get_args(OutputKind)
            for file in self._named_alike(kind)  # another output's too: its files must not be written over
        ]
        return f"resume{1 + max((int(shard['resume'] or 0) for shard in shards if shard), default=0)}"

    def shard(self, kind: OutputKind, labels: list[str], index: int, count: int, extension: str) -> str:
        """The path of a finished shard."""
        return "-".join([self._stem(kind), *filter(None, labels), f"{index:05d}-of-{count:05d}.{extension}"])

    def may_name(self, path: str) -> bool:
        """Whether a file of this name could be one of the output's: a shard, a temporary file, or its settings."""
        if _split(path)[0] == self._folder and any(self._shard_named(path, kind) for kind in get_args(OutputKind)):
            return True
        return path in (self.temporary, self.settings, self.claim, self.launches) or path.startswith(
            f"{self.temporary}/"
        )

    def check(self, if_exists: IfExists, *, endless: bool = False) -> None:
        """Raises ConfigError where output is there that `if_exists` does not allow for. `endless`: of a stream."""
        if if_exists not in get_args(IfExists):
            raise ConfigError(f"if_exists={if_exists!r}: takes {', '.join(get_args(IfExists))}")
        self._check_apart()
        if if_exists != "refuse":
            return
        if found := self.existing("completions") + self.existing("dead_letters"):
            ways = "--resume adds to it" if endless else "--resume adds what is missing, --overwrite replaces it"
            raise ConfigError(f"output={self.prefix!r}: {found[0]} is already there: {ways}")
        if found := self.interrupted("completions"):
            raise ConfigError(
                f"output={self.prefix!r}: an interrupted run left {found[0]}: --resume goes on from there, "
                "--overwrite starts again"
            )

    def check_finished(self) -> None:
        """Raises ConfigError where finished shards are there, for a job whose graph may run more than once."""
        if found := self.existing("completions") + self.existing("dead_letters"):
            told = f"output={self.prefix!r}: {found[0]} is already there"
            raise ConfigError(f"{told}, and this job replaces nothing")

    @property
    def _mark(self) -> str:
        return f"{self.temporary}/superseded.json"

    def _check_apart(self) -> None:
        """Raises ConfigError where a new file could have the name of another output's."""
        for kind in get_args(OutputKind):
            ours = {str(file.path) for file in self._found(kind)}
            for path in (str(file.path) for file in self._named_alike(kind)):
                shard = self._shard_named(path, kind)
                if path not in ours and shard is not None and shard["resume"] is None:
                    raise ConfigError(
                        f"output={self.prefix!r}: {path} belongs to another output, and could be overwritten: name "
                        "another output"
                    )

    def _found(self, kind: OutputKind) -> list[FileMetadata]:
        """Finished shards of a kind, but for another output's, such as `a-resume1` is one beside `a`."""
        alike = self._named_alike(kind)
        names = self._outputs_beside() if alike else []
        return [file for file in alike if _owner(str(file.path), names) in (self._name, None)]

    def _named_alike(self, kind: OutputKind) -> list[FileMetadata]:
        return [file for file in match(f"{self._stem(kind)}-*") if self._shard_named(str(file.path), kind)]

    def _outputs_beside(self) -> list[str]:
        """The names of the folder's outputs, the longest first, as far as settings tell."""
        noted = match(f"{self._folder}{_NOTES}/*{_SETTINGS}")
        names = [_split(str(file.path))[1].removesuffix(_SETTINGS) for file in noted]
        return sorted(names, key=len, reverse=True)

    def _stem(self, kind: OutputKind) -> str:
        return _of_kind(self.prefix, kind)

    def _shard_named(self, path: str, kind: OutputKind) -> re.Match[str] | None:
        """The parts of a shard's name, if it is named as one of this kind; its folder may be spelled in any way."""
        return _shard(path, _of_kind(self._name, kind))


@dataclass(frozen=True)
class RunFiles:
    """The finished files of one run."""

    files: OutputFiles
    output_format: OutputFormat
    label: str = ""
    """Tells them from the files that were there."""

    def path(self, kind: OutputKind, window: object, pane: Any, index: int, count: int) -> str:
        """The path of shard `index` of `count`, which hold one firing of a window."""
        labels = [self.label, window_label(window), _pane_label(pane)]
        return self.files.shard(kind, labels, index, count, extension_of(kind, self.output_format))


def output_and_format(output: str, output_format: str | None) -> tuple[str, OutputFormat]:
    """The prefix and the format that it, or else `output_format`, names; raises ConfigError."""
    for form in get_args(OutputFormat):
        if output.endswith(f".{form}"):
            output, output_format = output.removesuffix(f".{form}"), output_format or form
    if output_format is None:
        return output, "jsonl"
    if output_format not in get_args(OutputFormat):
        raise ConfigError(f"output_format={output_format!r}: takes {', '.join(get_args(OutputFormat))}")
    return output, cast(OutputFormat, output_format)


def extension_of(kind: OutputKind, output_format: OutputFormat) -> str:
    """Dead letters are always JSONL: their rows have any shape."""
    return "jsonl" if kind == "dead_letters" else output_format


def window_label(window: object) -> str:
    """A window as a part of a file's name; empty for the global one."""
    if isinstance(window, GlobalWindow):
        return ""
    assert isinstance(window, IntervalWindow), f"no name is known for windows such as {window}"
    return "-".join(
        bound.to_utc_datetime().strftime("%Y%m%dT%H%M%S%fZ").replace("000000Z", "Z")
        for bound in (window.start, window.end)
    )


def _pane_label(pane: Any) -> str:
    """Later panes of a window stand beside the first."""
    return f"pane{pane.index}" if pane.index > 0 else ""


def _fingerprint(file: FileMetadata) -> tuple[str, int, float]:
    return str(file.path), file.size_in_bytes, file.last_updated_in_seconds


def _owner(path: str, names: list[str]) -> str | None:
    """The first of the outputs that has files of such a name; None where it is not known."""
    return next((name for name in names for kind in get_args(OutputKind) if _shard(path, _of_kind(name, kind))), None)


def _of_kind(output: str, kind: OutputKind) -> str:
    return output if kind == "completions" else f"{output}.dead_letters"


def _shard(path: str, name: str) -> re.Match[str] | None:
    """What follows the name in a path's last part, if that is what follows it in a shard's."""
    file = _split(path)[1]
    return _SHARD.fullmatch(file, len(name)) if file.startswith(name) else None


def _split(path: str) -> tuple[str, str]:
    """The folder, with the slash behind it, and the name in it."""
    folder, slash, name = path.rpartition("/")
    return folder + slash, name

"""`millrace view out/rows.parquet`: the rows of outputs in a browser; `--output` writes a page of the first."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from apache_beam.io.filesystems import BeamIOError

from millrace.model_manager.wire.errors import ConfigError, MillraceError, counted
from millrace.transforms.elements.prompt_rows import RowShape
from millrace.transforms.files.file_systems import match, use_surroundings
from millrace.transforms.files.formats import NamedFormat
from millrace.transforms.writing.output_files import OutputFiles, output_and_format

from ..edge import at_the_edge
from ..flags.parser import FlagParser
from ..interrupts import end_signal
from ..pages.found_prompts import Input
from ..pages.html import page, policy
from ..pages.page_files import check_page, write_page
from .view_looks import Look, Page
from .view_server import served

_ROWS = 200
_ENDINGS = (".jsonl", ".parquet", ".csv")


def main(arguments: Sequence[str]) -> int:
    """Serve or write the pages; returns the exit status."""
    return at_the_edge(lambda: _view(arguments))


def _view(arguments: Sequence[str]) -> int:
    flags = _parser().parse_args(list(arguments))
    if flags.rows < 1:
        raise ConfigError(f"--rows {flags.rows}: takes 1 or more")
    use_surroundings()
    paths = files_named(flags.places)
    if flags.output:
        read = [*paths, *(each for given in flags.input or () for each in given)]
        check_page("--output", flags.output, read, replaces=flags.overwrite)
    look = Look(" ".join(flags.places), paths, _input(flags))
    if flags.output:
        _write(look, flags.output, flags.rows)
    else:
        _serve(look, flags)
    return 0


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="millrace view",
        usage="%(prog)s OUTPUT … [--input GLOB …] [--output PAGE.html] [flags]",
        description="Look at the rows of outputs in a browser, or write a page of the first ones.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "places",
        nargs="+",
        metavar="OUTPUT",
        help="Files of results or dead letters (.jsonl, .parquet, .csv): paths or globs, local, gs:// or s3://; or the "
        "value of a job's --output.",
    )
    parser.add_argument("--output", metavar="FILE", help="Write the first rows to an HTML file, and do not serve.")
    parser.add_argument(
        "--rows", type=int, default=_ROWS, metavar="N", help=f"Rows to write with --output. Default: {_ROWS}."
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Let --output replace a file that millrace did not write."
    )
    parser.add_argument("--no-browser", action="store_true", help="Print the address, but open no browser.")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="Port on 127.0.0.1. Default: a free one.")
    group = parser.add_argument_group("input, whose rows are shown beside their results; flags as for the job")
    group.add_argument("--input", nargs="+", action="append", metavar="GLOB", help="Files of the job's input.")
    group.add_argument(
        "--input_format", choices=list(get_args(NamedFormat)), help="Format of --input. Default: by the extension."
    )
    group.add_argument(
        "--prompt_column", "--text_column", metavar="NAME", help="Column that holds the prompt or document."
    )
    group.add_argument(
        "--id_column", metavar="NAME", help="Column that holds the row's id. Default: id, else custom_id."
    )
    group.add_argument("--template", help="Make each prompt from the row's columns.")
    group.add_argument(
        "--documents",
        action="store_true",
        help="Read --input as millrace extract and classify do: JSONL, CSV and Parquet by their extensions, any "
        "other file as one row.",
    )
    return parser


def _input(flags: argparse.Namespace) -> Input | None:
    if not flags.input:
        return None
    shape = RowShape(
        prompt_column=flags.prompt_column,
        id_column=flags.id_column,
        documents=flags.documents,
        row_params=not flags.documents,
        template=flags.template,
    )
    named = flags.input_format or ("documents" if flags.documents else None)
    patterns = [glob for given in flags.input for glob in given]
    for pattern in patterns:
        if not _matched(pattern):
            raise ConfigError(f"--input {pattern}: no such file; takes files or globs")
    return Input(patterns, shape, named)


def files_named(places: Sequence[str]) -> list[str]:
    """Files by their paths, by globs, or by the prefix that a job had as its --output; each once."""
    found: dict[str, None] = {}
    for place in places:
        files = [path for path in _matched(place) if path.endswith(_ENDINGS)] or _of_output(place)
        if not files:
            takes = "takes files of results (.jsonl, .parquet, .csv), or what a job's --output said"
            raise ConfigError(f"{place}: no such output; {takes}")
        found |= dict.fromkeys(files)
    return list(found)


def _matched(place: str) -> list[str]:
    try:
        return [str(file.path) for file in match(place)]
    except (OSError, BeamIOError) as error:
        raise ConfigError(f"{place}: cannot be listed: {error}") from None


def _of_output(place: str) -> list[str]:
    if set("*?[]") & set(place):
        return []
    files = OutputFiles(output_and_format(place, None)[0])
    return files.existing("completions") + files.existing("dead_letters")


def _html(page_of: Page, *, form: bool) -> str:
    return page("rows.html", view=page_of, title=page_of.title, policy=policy(form=form))


def _write(look: Look, path: str, rows: int) -> None:
    shown = look.first(rows)
    try:
        write_page(path, _html(shown, form=False))
    except (OSError, ValueError, MillraceError) as error:
        raise ConfigError(f"--output {path}: cannot be written: {error}") from None
    print(f"{shown.said}: {path}")


def _serve(look: Look, flags: argparse.Namespace) -> None:
    ended = end_signal()
    threading.Thread(target=_count, args=(look,), daemon=True).start()
    with (
        served(lambda query: _html(look.page(query), form=True), flags.port) as address,
        contextlib.ExitStack() as stack,
    ):
        rows = "rows" if look.known is None else counted(look.known, "row")
        print(f"{rows} at {address} (Ctrl-C ends it)", flush=True)
        if not flags.no_browser:
            stack.enter_context(_opened(address))
        ended.wait()


def _count(look: Look) -> None:
    """While the first page is looked at. What cannot be read is told on the page that needs it."""
    with contextlib.suppress(MillraceError, OSError, ValueError):
        look.count()


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """Shown in a browser, by a file that only this user can read: command lines, and so the token, are seen by all."""
    with tempfile.TemporaryDirectory(prefix="millrace-view-") as folder:
        file = Path(folder) / "view.html"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(file.as_uri())
        yield

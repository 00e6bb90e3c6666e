import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from millrace.pipelines.job.logs import logs_at


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What is printed where a library has set up logging before us."""
    root, handler = logging.getLogger(), logging.StreamHandler()
    root.addHandler(handler)
    yield lambda: capsys.readouterr().err
    assert handler in root.handlers
    root.removeHandler(handler)


def test_each_line_is_printed_once(printed: Callable[[], str]) -> None:
    with logs_at("info"):
        logging.getLogger("millrace.x").info("hello")
    assert printed().count("hello") == 1


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["ours debug", "ours info", "ours warning", "theirs info", "theirs warning"]),
        ("info", ["ours info", "ours warning", "theirs warning"]),
        ("warning", ["ours warning"]),
        ("error", []),
    ],
)
def test_libraries_are_logged_a_level_above_ours(printed: Callable[[], str], level: str, shown: list[str]) -> None:
    with logs_at(level):
        for name, module in (("ours", "millrace.x"), ("theirs", "apache_beam.x")):
            for severity in ("debug", "info", "warning"):
                logging.getLogger(module).log(getattr(logging, severity.upper()), f"{name} {severity}")
    assert [line.rsplit(": ", 1)[-1] for line in printed().splitlines()] == shown


def test_what_a_line_quotes_steers_no_terminal(printed: Callable[[], str]) -> None:
    quoted = "\x1b]0;title\x07 \x1b[2J\x9b2J \u202e\r over"
    with logs_at("warning"):
        logging.getLogger("millrace.x").warning("a row says %s\nand its second line", quoted)
    first, second = printed().split("\n")[-3:-1]
    assert first.endswith("a row says \u241b]0;title\u2407 \u241b[2J\ufffd2J \ufffd\u240d over")
    assert second == "and its second line"


def test_what_libraries_log_after_an_interruption_is_not_printed() -> None:
    """The runner's threads find their channels closed, after the last sentence; Python prints what nobody handles."""
    program = (
        "import contextlib, logging\nfrom millrace.pipelines.job.logs import logs_at\n"
        "with contextlib.suppress(KeyboardInterrupt), logs_at('warning'):\n    raise KeyboardInterrupt\n"
        "logging.getLogger('apache_beam').error('Channel closed prematurely.')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == ""

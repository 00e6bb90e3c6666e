import logging
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

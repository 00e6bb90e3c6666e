"""A help that names a page of the documentation says where the pages are."""

from __future__ import annotations

import pytest

from millrace.pipelines.cli import COMMANDS
from tests.docs.reference_pages import parser_of

WHERE = "Pages named as (docs: …) are in the folder docs/ of millrace's repository."


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_that_names_pages_says_where_they_are(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = " ".join(parser_of(command).format_help().split())
    assert (WHERE in text) == ("docs: " in text.replace(WHERE, ""))

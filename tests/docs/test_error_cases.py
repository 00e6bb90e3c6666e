"""The page of errors shows what commands print."""

from tests.docs.error_cases import BEGINS, ENDS, PAGE, tables


def test_the_page_of_errors_is_what_commands_print() -> None:
    stored = PAGE.read_text(encoding="utf-8").partition(BEGINS)[2].partition(ENDS)[0]
    assert stored.strip() == tables().strip(), "stale: run `make errors`, and read what changed"
    assert "is of" not in stored
    assert "(docs: " not in stored, "help alone explains such names; an error names a file of the repository"

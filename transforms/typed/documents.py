"""Prompts that are documents: what is asked about them is not in them."""

from __future__ import annotations

from millrace.model_manager.wire.errors import InvalidRequest

from ..elements.completions import Prompt
from ..elements.prompt_rows import RowShape
from .blanks import is_blank


def rows_of_documents(text_column: str | None) -> RowShape:
    """Rows with a document in that column, or else as RowShape has it; what else they have is theirs."""
    return RowShape(prompt_column=text_column, documents=True, row_params=False)


def document_of(prompt: Prompt) -> str:
    """Its text; raises InvalidRequest where it is something else, or blank."""
    if prompt.text is None:
        raise InvalidRequest("a document is text, not messages or token ids")
    if is_blank(prompt.text):
        raise InvalidRequest("the document is blank")
    return prompt.text

"""Prompts that hold a document alone. The question about the document comes from the transform, not from the row."""

from __future__ import annotations

from millrace.model_manager.wire.errors import InvalidRequest

from ..elements.completions import Prompt
from ..elements.prompt_rows import RowShape
from .blanks import is_blank


def rows_of_documents(text_column: str | None) -> RowShape:
    """The shape of rows that hold a document in `text_column`, or in one of RowShape's default columns. Other columns
    are passed through; none is a sampling parameter.
    """
    return RowShape(prompt_column=text_column, documents=True, row_params=False)


def document_of(prompt: Prompt) -> str:
    """The document's text; raises InvalidRequest if the prompt is not a text, or is blank."""
    if prompt.text is None:
        raise InvalidRequest("a document is text, not messages or token ids")
    if is_blank(prompt.text):
        raise InvalidRequest("the document is blank")
    return prompt.text

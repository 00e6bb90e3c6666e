"""What the docstrings of settings say of each field: flags, reference pages and /openapi.json repeat it."""

from __future__ import annotations

import ast
import inspect
import textwrap


def field_docs(settings: type) -> dict[str, str]:
    """The docstring that follows each field in the source, on one line; empty where none does."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            docs[field.target.id] = " ".join(str(text).split())
    return docs

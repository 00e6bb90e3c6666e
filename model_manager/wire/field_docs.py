"""What the docstrings of settings say of each field: flags, reference pages and /openapi.json repeat it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise


@cache
def field_docs(settings: type) -> Mapping[str, str]:
    """The docstring that follows each field in the source, on one line; empty where none does."""
    body = _classes(settings.__module__)[settings.__name__].body
    docs: dict[str, str] = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            docs[field.target.id] = " ".join(str(text).split())
    return docs


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """A module's classes; parsed once, where inspect.getsource reads the module anew for each."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}

"""Templates → one self-contained page: style and script stand in it, and its policy lets nothing else run or load.

Everything that templates put in is escaped; no template marks a value of a row as safe.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from .texts import percent


def page(template: str, **values: Any) -> str:
    """A whole page. Lone surrogates are not in it: what comes from rows has gone through texts.py."""
    return str(_environment().get_template(template).render(**values, **_inline()))


def policy(*, form: bool = False) -> str:
    """The content security policy: our style and our script by their hashes, nothing from anywhere else.

    `form`: the page has one, whose answer its own server gives.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(_read('style.css'))}'",
            f"script-src '{_hash(_read('page.js'))}'",
            "img-src data:",
            "base-uri 'none'",
            f"form-action {chr(39)}{'self' if form else 'none'}{chr(39)}",
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent)
    return environment


def _inline() -> dict[str, Any]:
    """Our own files alone: neither holds `</`."""
    return {"style": Markup(_read("style.css")), "script": Markup(_read("page.js"))}


@functools.cache
def _read(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

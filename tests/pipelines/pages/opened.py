"""A page in a real Chromium without a window: what it shows, and that it loads and runs nothing that is not its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Dialog, Page

from tests.servers.chromium import WITHIN


class Opened:
    """A page that was opened, and what went on beside."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._refuse)

    def _refuse(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def is_clean(self, address: str) -> bool:
        """Nothing but the page itself was asked for, and nothing went wrong."""
        others = [url for url in self.requests if not url.startswith((address, "data:,"))]
        assert (others, self.errors) == ([], [])
        return True

    def shown_rows(self) -> int:
        """Rows that filters let through."""
        return self.page.locator("article.row:visible").count()


@contextlib.contextmanager
def opened(on: Browser, address: str, *, dark: bool = False) -> Iterator[Opened]:
    """The page at an address, wholly loaded."""
    context = on.new_context(viewport={"width": 1200, "height": 900}, color_scheme="dark" if dark else "light")
    try:
        context.set_default_timeout(1000 * WITHIN)
        found = Opened(context.new_page())
        found.page.goto(address)
        yield found
    finally:
        context.close()


def address_of(file: Path) -> str:
    """A file's address, as a browser takes it."""
    return file.resolve().as_uri()

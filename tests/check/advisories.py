"""Whether this machine can ask pypi.org for known vulnerabilities, as `make audit` does. A mirror may not have them.

    python -m tests.check.advisories || echo "no audit here"

The exit status is 0 if it can; else 1, and stderr says why.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from http.client import HTTPException
from importlib.metadata import version

ASKED = f"https://pypi.org/pypi/apache-beam/{version('apache-beam')}/json"
"""One of the documents that pip-audit reads: of a version of a package. It has a list of them, empty or not."""
_WITHIN = 30.0


def reason_against(url: str = ASKED) -> str | None:
    """Why vulnerabilities cannot be asked for; None if they can."""
    try:
        with urllib.request.urlopen(url, timeout=_WITHIN) as answer:
            document = json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        return f"{url}: {error}"
    has_list = isinstance(document, dict) and isinstance(document.get("vulnerabilities"), list)
    return None if has_list else f"{url}: has no list of vulnerabilities"


def main() -> None:
    """As the module says."""
    if reason := reason_against():
        sys.exit(f"known vulnerabilities in packages cannot be asked for from here: {reason}")


if __name__ == "__main__":
    main()

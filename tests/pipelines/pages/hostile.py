"""Rows that try to break a page, or to run something in it."""

from __future__ import annotations

from typing import Any

TEXTS = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "</style><style>*{display:none}</style>",
    "-->]]></textarea></title><iframe src='https://example.invalid/'></iframe>",
    "{{ 7 * 7 }}{% for x in y %}",
    '" onmouseover="alert(3)" x=\'',
    "&lt;b&gt; &amp; &#x3c;script&#x3e; &nbsp;",
    "javascript:alert(4)",
    "null \x00 bell \x07 escape \x1b[31m delete \x7f next line \x85",
    "carriage\rreturn\r\nline\n\ntab\t  spaces   end ",
    "\nfirst line is empty",
    "right to left \u202e txt.exe \u2066 isolate",
    "half \ud83d of a character, and \ufffe",
    "separators \u2028 and \u2029, zero \u200b width",
    "e\u0301\u0301\u0301 中文 العربية 👩‍👩‍👧‍👦",
    "<svg onload=alert(5)><a href='javascript:alert(6)'>x</a></svg>",
]

_HUGE = 10**400
ROWS: list[dict[str, Any]] = [
    {"labels": [["x"], {"y": 1}], "probabilities": {"x": 1.0}, "usage": {}},
    {"labels": ["x"], "probabilities": {"x": _HUGE}, "usage": {}},
    {"finish_reason": "stop", "usage": {}, "timings": {"latency": 1e308, "first_token": _HUGE}},
    {"finish_reason": "stop", "usage": {"prompt_tokens": _HUGE}, "timings": {"latency": -1e308}},
    {"confidences": {"a": _HUGE}, "a": 1},
    {"confidences": {"a": -1e308}, "a": _HUGE},
    {"scores": [{"continuation": "x", "logprob": _HUGE}], "usage": {}},
    {"embedding": [_HUGE, 1e308, True], "usage": {}},
]
"""Rows whose numbers no float holds, and whose labels are none."""

"""A multipart form (RFC 7578) as its body comes: its file goes to a stream, its other fields stay in memory.

python-multipart finds the parts; nothing here holds more than one piece of the body.
"""

from __future__ import annotations

from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..http.http_errors import HttpError

MOST_BESIDE_FILE = 2**16
"""Bytes of a form but for its file: fields, headers, boundaries."""
_SHOWN = 200
"""Characters of a file's name that are kept."""


class Form:
    """Reads a form. Each method raises HttpError: 400, or the refusal that it is given."""

    def __init__(self, content_type: str, target: BinaryIO, most: int, refusal: HttpError) -> None:
        """`target` gets the field `file`, of at most `most` bytes; a larger one raises `refusal`."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise _wrong("the body is no form: takes multipart/form-data with the fields file and purpose")
        self.fields: dict[str, str] = {}
        """The fields but the file."""
        self.filename: str | None = None
        """Name of the file; None until there is one."""
        self._target = target
        self._room, self._refusal = most, refusal
        self._others = MOST_BESIDE_FILE
        self._headers: dict[bytes, bytes] = {}
        self._header = [b"", b""]
        self._name = ""
        self._value = b""
        self._is_whole = False
        self._parser = self._made(options[b"boundary"])

    def feed(self, data: bytes) -> None:
        """The next piece of the body."""
        self._others -= len(data)
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _wrong(f"the form cannot be read: {error}") from None
        if self._others < 0:
            raise _wrong(f"the form has more than {MOST_BESIDE_FILE} bytes beside its file")

    def end(self) -> None:
        """The body has ended."""
        if not self._is_whole:
            raise _wrong("the form is cut off")
        if self.filename is None:
            raise HttpError(400, "file: is missing; takes a file", param="file", code="missing_required_parameter")

    def _made(self, boundary: bytes) -> MultipartParser:
        calls = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, start, end: self._on_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._on_header(1, data[start:end]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        try:
            return MultipartParser(boundary, calls)  # type: ignore[arg-type]  # functions of any signature
        except FormParserError as error:
            raise _wrong(f"the form's boundary cannot be taken: {error}") from None

    def _on_part_begin(self) -> None:
        self._headers, self._header, self._value = {}, [b"", b""], b""

    def _on_header(self, index: int, data: bytes) -> None:
        self._header[index] += data

    def _on_header_end(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file":
            if self.filename is not None:
                raise _wrong("file: is there twice; takes one file")
            self.filename = options.get(b"filename", b"file").decode("utf-8", "replace")[:_SHOWN]

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name != "file":
            self._value += data[start:end]
            return
        self._room -= end - start
        self._others += end - start
        if self._room < 0:
            raise self._refusal
        self._target.write(memoryview(data)[start:end])

    def _on_part_end(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_whole = True


def _wrong(message: str) -> HttpError:
    return HttpError(400, message, code="invalid_form", headers={"connection": "close"})

"""Forms as their bodies come: whatever the pieces are, the file is the same; and forms that are none."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.serving.files.form import Form
from millrace.serving.http.http_errors import HttpError

REFUSAL = HttpError(413, "the file is too large")
TYPE = "multipart/form-data; boundary=edge"


def form_of(content: bytes, name: str = "file", purpose: str = "batch") -> bytes:
    return (
        b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose.encode() + b"\r\n"
        b'--edge\r\nContent-Disposition: form-data; name="' + name.encode() + b'"; filename="a.jsonl"\r\n'
        b"Content-Type: application/jsonl\r\n\r\n" + content + b"\r\n--edge--\r\n"
    )


def read(body: bytes, cuts: list[int], most: int = 1000) -> tuple[Form, bytes]:
    target = io.BytesIO()
    form = Form(TYPE, target, most, REFUSAL)
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for begin, end in pairwise(edges):
        form.feed(body[begin:end])
    form.end()
    return form, target.getvalue()


CONTENTS = st.binary(max_size=60) | st.sampled_from([b"--edge", b"\r\n--edg", b"\r\n--edge", b"\r\n\r\n--"])


@given(CONTENTS, st.lists(st.integers(0, 999)))
def test_a_file_is_the_same_however_its_body_is_cut(content: bytes, cuts: list[int]) -> None:
    if b"\r\n--edge" in content:  # the end of its part
        return
    form, got = read(form_of(content), cuts)
    assert got == content
    assert (form.fields, form.filename) == ({"purpose": "batch"}, "a.jsonl")


def test_a_file_is_refused_where_it_becomes_too_large() -> None:
    assert read(form_of(b"x" * 10), [], most=10)[1] == b"x" * 10
    with pytest.raises(HttpError) as refused:
        read(form_of(b"x" * 11), [], most=10)
    assert refused.value is REFUSAL


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (form_of(b"x")[:-12], "cut off"),
        (b"", "cut off"),
        (form_of(b"x", name="other"), "file: is missing"),
        (b"no form at all", "cannot be read"),
        (form_of(b"x", purpose="p" * 70_000), "more than 65536 bytes beside its file"),
        (form_of(b"x") + b"x" * 70_000, "more than 65536 bytes beside its file"),
        (form_of(b"x")[:-10] + form_of(b"y")[2:], "file: is there twice"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(HttpError, match=told):
        read(body, [])


@pytest.mark.parametrize("kind", ["application/json", "", "multipart/form-data", "multipart/mixed; boundary=edge"])
def test_another_type_is_refused(kind: str) -> None:
    with pytest.raises(HttpError, match="takes multipart/form-data"):
        Form(kind, io.BytesIO(), 10, REFUSAL)


@pytest.mark.parametrize("boundary", ["x" * 257, "x" * 5000])
def test_a_boundary_that_is_too_long_is_refused(boundary: str) -> None:
    with pytest.raises(HttpError, match="boundary") as refused:
        Form(f"multipart/form-data; boundary={boundary}", io.BytesIO(), 10, REFUSAL)
    assert refused.value.status == 400

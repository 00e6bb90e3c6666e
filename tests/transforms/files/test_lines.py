import io

from hypothesis import given
from hypothesis import strategies as st

from millrace.transforms.files.lines import Line, read_lines

contents = st.lists(st.binary(max_size=6)).map(b"\n".join)


@given(contents, st.integers(1, 10))
def test_ranges_of_any_size_hold_every_line_once(content: bytes, size: int) -> None:
    whole = list(read_lines(io.BytesIO(content), limit=100))
    parts = [
        line
        for start in range(0, len(content), size)
        for line in read_lines(io.BytesIO(content), start, start + size, limit=100)
    ]
    assert parts == whole


@given(contents)
def test_offsets_are_where_lines_begin(content: bytes) -> None:
    for line in read_lines(io.BytesIO(content), limit=100):
        assert content[line.offset :].startswith(line.data)
        assert line.offset == 0 or content[line.offset - 1 : line.offset] == b"\n"


def test_line_ends_of_both_kinds_and_none_at_the_end() -> None:
    assert [line.data for line in read_lines(io.BytesIO(b"a\r\n\nb"), limit=9)] == [b"a", b"", b"b"]


def test_a_line_over_the_limit_is_cut_and_the_next_is_read() -> None:
    content = b"x" * 3_000_000 + b"\nab\n"
    assert list(read_lines(io.BytesIO(content), limit=2)) == [Line(0, b"xx", True), Line(3_000_001, b"ab")]


def test_a_line_of_just_the_limit_is_whole() -> None:
    assert list(read_lines(io.BytesIO(b"ab\r\ncd"), limit=2)) == [Line(0, b"ab"), Line(4, b"cd")]
    assert list(read_lines(io.BytesIO(b"abc\nd"), limit=2)) == [Line(0, b"ab", True), Line(4, b"d")]

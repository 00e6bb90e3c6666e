from millrace.pipelines.job.words import answered, reasons, rows_of, speeds, tokens_of


def test_the_four_commonest_reasons_are_told_and_the_rest_is_counted() -> None:
    failures = {"A": 1, "B": 20, "C": 3, "D": 3, "E": 2, "F": 1}
    assert reasons(failures) == "20 B, 3 C, 3 D, 2 E, 2 of other classes"
    assert reasons({}) == ""


def test_rows_are_told_of_all_rows_where_that_number_is_known() -> None:
    assert rows_of(1234, 5000) == "1,234 of 5,000 rows"
    assert rows_of(1, 5000, exact=False) == "1 of ≈ 5,000 rows"
    assert rows_of(0, 1) == "0 of 1 row"
    assert (rows_of(1, None), rows_of(0, None)) == ("1 row", "0 rows")


def test_words_of_counts_and_speeds() -> None:
    assert answered(1, 2000) == "1 row answered, 2,000 failed"
    assert tokens_of(1, 0, 1000) == "1 prompt token (0 from the cache), 1,000 generated"
    told = "2,000 prompt tokens (500 from the cache), 1,000 generated; 250 computed again (10 %)"
    assert tokens_of(2000, 500, 1000, 250) == told
    assert speeds(10, 1000, 10.0) == ["1.0 rows/s", "100 tokens/s"]
    assert speeds(10, 0, 10.0) == ["1.0 rows/s"]
    assert speeds(10, 1000, 0.5) == []

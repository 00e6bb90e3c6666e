from millrace.pipelines.job.words import answered, reasons, speeds, tokens_of


def test_the_four_commonest_reasons_are_told_and_the_rest_is_counted() -> None:
    failures = {"A": 1, "B": 20, "C": 3, "D": 3, "E": 2, "F": 1}
    assert reasons(failures) == "20 B, 3 C, 3 D, 2 E, 2 of other classes"
    assert reasons({}) == ""


def test_words_of_counts_and_speeds() -> None:
    assert answered(1, 2000) == "1 row answered, 2,000 failed"
    assert tokens_of(1, 0, 1000) == "1 prompt token (0 from the cache), 1,000 generated"
    told = "2,000 prompt tokens (500 from the cache), 1,000 generated; 250 computed again (10 %)"
    assert tokens_of(2000, 500, 1000, 250) == told
    assert speeds(10, 1000, 10.0) == ["1.0 prompts/s", "100 tokens/s"]
    assert speeds(10, 0, 10.0) == ["1.0 prompts/s"]
    assert speeds(10, 1000, 0.5) == []

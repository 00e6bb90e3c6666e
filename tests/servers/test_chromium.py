import pytest

from tests.servers import chromium


@pytest.mark.parametrize(
    ("variable", "ending"),
    [("CI", pytest.fail.Exception), ("ENGINES", pytest.fail.Exception), (None, pytest.skip.Exception)],
)
def test_no_chromium_is_a_failure_where_all_tests_are_meant_to_run(
    variable: str | None, ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise chromium.NoChromium("there is none")

    for name in ("CI", "ENGINES"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(chromium, "program", none)
    with pytest.raises(ending, match="there is none"), chromium.browser():
        raise AssertionError("there is no browser")

from hypothesis import given
from hypothesis import strategies as st

from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.completions import Prompt
from millrace.transforms.requests.retry_ids import RequestIds

PARAMS = SamplingParams()
texts = st.lists(st.sampled_from("abcd"))


@given(texts)
def test_the_same_bundle_again_has_the_same_ids_all_different(contents: list[str]) -> None:
    runs = []
    for _ in range(2):
        ids = RequestIds("job")
        runs.append([ids.of(Prompt(text=content), PARAMS) for content in contents])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == len(contents)


def test_jobs_do_not_share_ids() -> None:
    assert RequestIds("one").of(Prompt(text="a"), PARAMS) != RequestIds("two").of(Prompt(text="a"), PARAMS)


def test_adapters_do_not_share_ids() -> None:
    one, other = (RequestIds("job").of(Prompt(text="a"), SamplingParams(adapter=name)) for name in ("", "org/a"))
    assert one != other


def test_only_so_many_prompts_are_remembered() -> None:
    ids = RequestIds("job", remembered=2)
    first = ids.of(Prompt(text="a"), PARAMS)
    assert ids.of(Prompt(text="a"), PARAMS) != first
    for content in "bc":
        ids.of(Prompt(text=content), PARAMS)
    assert ids.of(Prompt(text="a"), PARAMS) == first

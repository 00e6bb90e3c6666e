from concurrent.futures import Future
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints import KV
from apache_beam.typehints import Any as AnyType

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import ConfigError, EngineLost, InvalidRequest, ModelNotFound
from millrace.model_manager.wire.request import Output
from millrace.model_manager.wire.sampling import SamplingParams
from millrace.transforms.elements.beam_metrics import ACTIVE
from millrace.transforms.elements.completions import Completion, DeadLetter, Prompt, Usage
from millrace.transforms.generate import Generate
from millrace.transforms.models.client import ClientOptions
from millrace.transforms.models.shared_model import SharedModel
from millrace.transforms.models.stand_in import StandInClient
from millrace.transforms.models.updates import WatchedFile
from millrace.transforms.requests.asynchronous import AsyncRequestDoFn
from tests.transforms.clients import PickyClient, RecordingClient, generate, no_such_model
from tests.transforms.running import check, counters, pipeline


def test_text_becomes_a_completion() -> None:
    with pipeline() as p:
        completions = p | beam.Create(["one two", "three"]) | generate()

        def holds(rows: list[Completion]) -> bool:
            one = next(row for row in rows if row.text == "ONE TWO")
            return len(rows) == 2 and (one.finish_reason, one.usage.completion_tokens, one.model) == (
                "stop",
                2,
                "stand-in",
            )

        check(completions, holds)


def test_results_and_dead_letters_say_which_revision_made_them() -> None:
    model = ModelConfig(model="stand-in", revision="r1")
    with pipeline() as p:
        prompts = p | beam.Create(["fine", "nan"])
        made, dead = prompts | Generate(model, open_client=PickyClient).with_exception_handling()
        makers = (made, dead) | beam.Flatten() | beam.Map(lambda row: (row.model, row.revision))
        check(makers, lambda rows: rows == [("stand-in", "r1")] * 2)


def test_elements_are_prompts_text_messages_token_ids_or_rows() -> None:
    elements = [
        Prompt(id="p", text="a", columns={"x": 1}),
        [{"role": "user", "content": "b"}],
        [3, 4],
        {"id": "r", "prompt": "c d", "max_tokens": 1, "y": 2},
    ]
    with pipeline() as p:
        completions = p | beam.Create(elements) | generate()
        check(completions, lambda rows: sorted(row.text for row in rows) == ["3 4", "A", "B", "C"], "texts")
        columns = completions | beam.Map(lambda row: (row.id, row.columns))
        check(columns, lambda rows: ("p", {"x": 1}) in rows and ("r", {"y": 2}) in rows, "columns")


def test_a_row_that_names_a_model_goes_to_it_and_one_that_names_none_to_the_first() -> None:
    rows = [{"prompt": "a", "model": "org/b"}, {"prompt": "b", "model": "org/a"}, {"prompt": "c"}, "d"]
    with pipeline() as p:
        made = p | beam.Create(rows) | Generate("org/a", models=["org/b"], open_client=PickyClient)
        found = made | beam.Map(lambda row: (row.text, row.model))
        check(found, lambda pairs: sorted(pairs) == [("A", "org/b"), ("B", "org/a"), ("C", "org/a"), ("D", "org/a")])


def test_equal_prompts_to_two_models_are_two_requests() -> None:
    rows = [{"id": "r", "prompt": "one", "model": name} for name in ("org/a", "org/b")]
    with pipeline() as p:
        made = p | beam.Create(rows) | Generate("org/a", models=["org/b"], open_client=PickyClient)
        check(made | beam.Map(lambda row: row.model), lambda names: sorted(names) == ["org/a", "org/b"])


@pytest.mark.parametrize("named", ["org/x", 3, ["org/a"]])
def test_a_row_that_names_no_model_of_the_job_is_a_dead_letter(named: object) -> None:
    with pipeline() as p:
        rows = p | beam.Create([{"prompt": "a", "model": named}, {"prompt": "b"}])
        given = Generate("org/a", models=["org/b"], open_client=PickyClient)
        made, dead = rows | given.with_exception_handling()
        check(made | beam.Map(lambda row: row.text), lambda texts: texts == ["B"], "made")
        wanted = f"`model` is {named!r}: takes one of the job's models (org/a, org/b)"
        check(
            dead, lambda letters: [(row.error, row.reason) for row in letters] == [("InvalidRequest", wanted)], "dead"
        )


def test_where_no_further_models_are_given_the_column_is_one_like_any_other() -> None:
    with pipeline() as p:
        made = p | beam.Create([{"prompt": "a", "model": "org/x"}]) | generate()
        check(made | beam.Map(lambda row: row.columns), lambda found: found == [{"model": "org/x"}])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"models": ["org/b", "org/b"]}, "org/b is there twice"),
        ({"models": "org/b"}, "takes a list of models"),
        ({"models": [3]}, "got int"),
        ({"models": ["org/b"], "stateful": True}, "stateful=True"),
        ({"models": ["org/b"], "updates": WatchedFile("models.txt")}, "updates of the model"),
    ],
)
def test_models_that_cannot_be_told_apart_or_change_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Generate("org/a", **given)


def test_a_template_makes_prompts_of_text_and_mappings() -> None:
    with pipeline() as p:
        made = p | beam.Create(["one", {"text": "two"}, Prompt(text="as it is")]) | generate(template="say {text}")
        check(
            made | beam.Map(lambda found: found.text), lambda found: sorted(found) == ["AS IT IS", "SAY ONE", "SAY TWO"]
        )


def test_a_prompt_without_an_id_gets_that_of_its_content() -> None:
    seen = []
    for _ in range(2):
        with pipeline() as p:
            completions = p | beam.Create(["one", "one"]) | generate()
            check(completions, lambda rows: len({row.id for row in rows}) == 1 and bool(rows[0].id))
        seen.append(p)


def test_keyed_prompts_come_back_keyed() -> None:
    with pipeline() as p:
        completions = p | beam.Create([("a", "one"), ("b", "one"), ("c", "two")]) | generate()
        texts = completions | beam.MapTuple(lambda key, completion: (key, completion.text))
        check(texts, lambda rows: sorted(rows) == [("a", "ONE"), ("b", "ONE"), ("c", "TWO")])


def test_the_rows_own_parameters_are_on_top_of_the_jobs() -> None:
    with pipeline() as p:
        prompts = p | beam.Create([Prompt(text="a b c", params={"max_tokens": 1}), Prompt(text="d e f")])
        completions = prompts | generate(SamplingParams(max_tokens=2))
        check(
            completions,
            lambda rows: sorted((row.text, row.finish_reason) for row in rows) == [("A", "length"), ("D E", "length")],
        )


def test_several_answers_are_one_completion_whose_usage_is_of_all() -> None:
    with pipeline() as p:
        completions = p | beam.Create([Prompt(text="a b", params={"n": 3})]) | generate()
        counted = completions | beam.Map(lambda row: ([choice.text for choice in row.choices], row.text, row.usage))
        check(counted, lambda rows: rows == [(["A B"] * 3, "A B", Usage(2, 0, 6))])


def test_a_dead_letter_says_why_its_request_failed_and_its_neighbours_notice_nothing() -> None:
    prompts = [f"fine {n}" for n in range(20)] + ["nan", "", "x " * 2000, 3.5]
    with pipeline() as p:
        rows = p | beam.Create(prompts, reshuffle=False)
        completions, dead = rows | generate(client=PickyClient).with_exception_handling()
        check(completions, lambda rows: len(rows) == 20, "completions")
        kinds = ["InvalidRequest", "InvalidRequest", "NonFiniteLogits", "PromptTooLong"]
        check(dead, lambda letters: sorted(letter.error for letter in letters) == kinds, "dead letters")


def test_failed_requests_go_to_the_dead_letters_when_asked_for() -> None:
    prompts = ["fine", Prompt(id="p", text="nan", columns={"x": 1}, source="file:3"), {"prompt": "a", "top_p": 7}]
    with pipeline() as p:
        completions, dead = p | beam.Create(prompts) | generate(client=PickyClient).with_exception_handling()
        check(completions, lambda rows: [row.text for row in rows] == ["FINE"], "completions")

        def holds(rows: list[DeadLetter]) -> bool:
            nan = next(row for row in rows if row.id == "p")
            return len(rows) == 2 and (nan.error, nan.row, nan.source) == (
                "NonFiniteLogits",
                {"id": "p", "prompt": "nan", "x": 1},
                "file:3",
            )

        check(dead, holds, "dead letters")


def test_the_letter_of_an_element_that_is_no_prompt_has_the_rows_id_or_that_of_its_content() -> None:
    rows: list[Any] = [
        {"id": "r7", "prompt": "a", "max_tokens": 0},
        {"custom_id": 8, "prompt": 3, "x": object()},
        {"prompt": "a", "max_tokens": "5"},
        {"prompt": "b", "max_tokens": "5"},
        "",
    ]
    with pipeline() as p:
        _, dead = p | beam.Create(rows, reshuffle=False) | generate().with_exception_handling()

        def holds(letters: list[DeadLetter]) -> bool:
            ids = {letter.id for letter in letters}
            return len(letters) == len(ids) == 5 and {"r7", "8"} < ids and "" not in ids

        check(dead | beam.Reshuffle(), holds)


def test_keyed_dead_letters_keep_their_key() -> None:
    with pipeline() as p:
        _, dead = p | beam.Create([("k", "nan")]) | generate(client=PickyClient).with_exception_handling()
        check(dead | beam.Keys(), lambda keys: keys == ["k"])


def test_a_model_that_is_not_there_ends_the_job_with_its_sentence() -> None:
    with pytest.raises(ModelNotFound, match="--model stand-in: no such folder"), pipeline() as p:
        _ = p | beam.Create(["a"]) | generate(client=no_such_model)


def test_a_lost_engine_is_raised_for_the_runner_and_what_is_outstanding_is_cancelled(
    recorded: list[tuple[str, str]],
) -> None:
    prompts = ["held", "lost", "held too"]
    with pytest.raises(EngineLost), pipeline() as p:
        _ = p | beam.Create(prompts, reshuffle=False) | generate(client=RecordingClient)
    submitted = [name for what, name in recorded if what == "submit"]
    assert submitted[0] in [name for what, name in recorded if what == "cancel"]


def fail(_completion: Completion) -> None:
    raise RuntimeError("a neighbour failed")


def test_a_failure_of_who_takes_the_results_cancels_what_is_outstanding(recorded: list[tuple[str, str]]) -> None:
    prompts = ["held", "a", "held too", "b", "c", "d", "e"]
    with pytest.raises(Exception, match="a neighbour failed"), pipeline() as p:
        _ = p | beam.Create(prompts, reshuffle=False) | generate(client=RecordingClient) | beam.Map(fail)
    assert [name for what, name in recorded if what == "cancel"]


class CuttingClient(StandInClient):
    """Keeps whether each answer may be cut."""

    asked: ClassVar[list[bool]] = []

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, may_be_cut: bool = False) -> Future[Any]:
        self.asked.append(may_be_cut)
        return super().submit(prompt, params, request_id=request_id)


@pytest.mark.parametrize("keep_cut", [True, False])
def test_the_client_is_told_whether_a_cut_answer_is_kept(keep_cut: bool) -> None:
    CuttingClient.asked.clear()
    with pipeline() as p:
        completions = p | beam.Create(["one"]) | Generate("stand-in", keep_cut=keep_cut, open_client=CuttingClient)
        check(completions, lambda rows: [row.text for row in rows] == ["ONE"])
    assert CuttingClient.asked == [keep_cut]


class HeldClient(StandInClient):
    """Answers nothing before it is told to."""

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self.futures: dict[str, Future[Any]] = {}
        self.submitted: list[str] = []

    def submit(self, prompt: Any, params: SamplingParams, *, request_id: str, **_: Any) -> Future[Any]:
        self.submitted.append(request_id)
        self.futures[request_id] = Future()
        if prompt == "a":
            self.futures[request_id].set_result(self.complete([prompt], params))
        return self.futures[request_id]


def test_a_bundle_that_failed_leaves_its_requests_to_its_retry_and_what_is_not_retried_is_cancelled() -> None:
    clients: list[HeldClient] = []

    def opened(options: ClientOptions) -> HeldClient:
        clients.append(HeldClient(options))
        return clients[-1]

    shared = SharedModel(ClientOptions(ModelConfig(model="stand-in")), opened)
    dofn = AsyncRequestDoFn(shared, Generate("stand-in")._task, SamplingParams(), "job", "raise")
    dofn.setup()
    dofn.start_bundle()
    for prompt in ("held", "other"):
        list(dofn.process(prompt, GlobalWindows.windowed_value(prompt)))
    broken_off: Any = dofn.process("a", GlobalWindows.windowed_value("a"))
    broken_off.close()  # whoever takes the results has failed
    (client,) = clients
    dofn.start_bundle()
    list(dofn.process("held", GlobalWindows.windowed_value("held")))
    assert not any(future.cancelled() for future in client.futures.values())
    held, other = client.submitted
    client.futures[held].set_result(client.complete(["held"], SamplingParams()))
    assert [output.value.text for output in dofn.finish_bundle()] == ["HELD"]
    assert client.futures[other].cancelled()
    dofn.start_bundle()
    list(dofn.process("last", GlobalWindows.windowed_value("last")))
    dofn.teardown()
    assert client.futures[client.submitted[-1]].cancelled()


def test_one_client_is_opened_for_a_job_and_closed_at_its_end(recorded: list[tuple[str, str]]) -> None:
    step = generate(client=RecordingClient)
    with pipeline("--direct_num_workers=3", "--direct_running_mode=multi_threading") as p:
        _ = p | beam.Create([f"p{n}" for n in range(30)]) | step
    opened = [name for what, name in recorded if what == "open"]
    assert set(opened) == {step.job}
    assert len([what for what, _ in recorded if what == "close"]) == len(opened)


def test_a_bundle_without_elements_opens_no_client(recorded: list[tuple[str, str]]) -> None:
    with pipeline() as p:
        _ = p | beam.Create(["a"]) | beam.Filter(lambda _: False) | generate(client=RecordingClient)
    assert recorded == []


def test_request_ids_are_those_of_the_same_job_run_again(recorded: list[tuple[str, str]]) -> None:
    runs = []
    for _ in range(2):
        recorded.clear()
        with pipeline() as p:
            _ = p | beam.Create(["a", "a", "b"]) | generate(client=RecordingClient, job="j")
        runs.append({name for what, name in recorded if what == "submit"})
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3


def test_metrics_count_requests_failures_and_tokens() -> None:
    with pipeline() as p:
        _ = (
            p
            | beam.Create(["one two three", "four", "nan"])
            | generate(SamplingParams(max_tokens=2), client=PickyClient).with_exception_handling()
        )
    assert counters(p.result) == {
        "requests": 3,
        "failures": 1,
        "failure:NonFiniteLogits": 1,
        "prompt_tokens": 4,
        "cached_tokens": 0,
        "generated_tokens": 3,
        "recomputed_tokens": 0,
    }
    distributions = {each.key.metric.name: each.committed for each in p.result.metrics().query()["distributions"]}
    assert (
        distributions["ttft_ms"].count == distributions["latency_ms"].count == distributions["queue_time_ms"].count == 2
    )
    assert distributions["latency_ms"].max == 4


class SlowToLoad(StandInClient):
    now: ClassVar[float] = 0.0

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        type(self).now = 1060.0

    def complete(self, words: list[str], params: SamplingParams) -> Output:
        type(self).now = 1063.0
        return super().complete(words, params)


def test_the_time_of_generation_begins_when_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowToLoad, "now", 1000.0)
    for module in ("requests.element_requests", "elements.beam_metrics"):
        monkeypatch.setattr(f"millrace.transforms.{module}.wall_clock", lambda: SlowToLoad.now)
    with pipeline() as p:
        _ = p | beam.Create(["one"]) | generate(client=SlowToLoad)
    (active,) = (
        each.committed for each in p.result.metrics().query()["distributions"] if each.key.metric.name == ACTIVE
    )
    assert (active.min, active.max) == (60_000, 63_000)


def test_outputs_have_types_keyed_as_the_input_is() -> None:
    with pipeline() as p:
        plain = p | "Plain" >> beam.Create(["a"])
        keyed = p | "Keyed" >> beam.Create([(1, "a")])
        unknown = plain | beam.Map(lambda element: element).with_output_types(AnyType)
        assert (plain | "1" >> generate()).element_type == Completion
        assert (keyed | "2" >> generate()).element_type == KV[int, Completion]
        assert (unknown | "3" >> generate()).element_type == AnyType
        both = plain | "4" >> generate().with_exception_handling()
        assert [output.element_type for output in both] == [Completion, DeadLetter]


def test_display_data_names_model_and_parameters() -> None:
    items = DisplayData.create_from(generate(SamplingParams(max_tokens=7)), extra_items={}).items
    shown = {item.key: item.value for item in items}
    assert (shown["model"], shown["max_tokens"]) == ("stand-in", "7")


def test_impossible_settings_are_refused_when_the_graph_is_built() -> None:
    with pytest.raises(ConfigError):
        Generate("")
    with pytest.raises(InvalidRequest):
        generate(SamplingParams(max_tokens=0))


def test_far_more_prompts_than_credits_are_all_answered() -> None:
    few = ModelConfig(model="stand-in", max_num_seqs=2)
    with pipeline() as p:
        completions = p | beam.Create([f"p {n}" for n in range(500)]) | Generate(few, open_client=StandInClient)
        check(completions, lambda rows: {row.text for row in rows} == {f"P {n}" for n in range(500)})

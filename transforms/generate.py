"""Generate: prompts → completions by a language model, in one step of a pipeline.

completions = prompts | Generate("org/model", SamplingParams(max_tokens=128))
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Unpack

from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.request import Output, RequestTask
from millrace.model_manager.wire.sampling import SamplingParams

from .elements.completions import Completion, Prompt
from .elements.prompt_rows import RowShape
from .elements.prompt_template import with_system
from .models.client import Client
from .requests.model_transform import ModelSettings, ModelTransform, chat_with


class Generate(ModelTransform):
    """A Completion for each prompt, as each finishes; keyed input `(key, prompt)` comes back keyed.

    A prompt is text, a Prompt, a list of chat messages, a list of token ids, or a mapping with the columns of a JSONL
    row (prompt_rows.py). A failed request fails the job. `with_exception_handling()` gives `(completions,
    dead_letters)` instead, and no other request notices the failure.

    Requests are known by their content: equal prompts without ids or seeds may share one answer. Give them ids where
    the samples are to be independent: a prompt with an id, and no seed, has the same samples in each job.

    What is wrong with the model or the machine fails the job at once; what is wrong with an engine is raised for the
    runner to retry the bundle, which then finds its requests running or done. Metrics are in the namespace `millrace`.
    """

    def __init__(
        self,
        model: str | ModelConfig,
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        system: str | None = None,
        keep_cut: bool = False,
        stateful: bool = False,
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`template`: Make each prompt from the row's columns: 'Summarize: {text}'. A row that lacks a column is a dead
        letter. Text alone is the column {text}; a Prompt stays as it is.

        `system`: System message of each chat, unless the row's messages have one. Needs a model with a chat template.

        `keep_cut`: Keep a constrained answer as it is when max_tokens cuts it, with finish_reason length, as OpenAI
        does. By default a short ending replaces its last tokens, or it is a dead letter.

        `stateful`: Keep requests in flight in the runner's state. For long generations on streams; not for a broker's
        messages on Prism (docs: Streams). Takes an unbounded input, and a runner with timers of real time; raises
        ConfigError, when applied, otherwise.

        `settings`: as millrace.transforms.requests.model_transform.ModelSettings explains them.
        """
        task = _Generating(template, system, keep_cut=keep_cut)
        super().__init__(task, model, params, chat_with(system, settings), stateful=stateful)


class _Generating:
    result = Completion
    name = "generate"
    request: RequestTask = "generate"

    def __init__(self, template: str | None, system: str | None, *, keep_cut: bool = False) -> None:
        self.rows = RowShape(template=template)
        self._system = system
        self._keep_cut = keep_cut

    def id_parts(self, prompt: Prompt) -> tuple[Any, ...]:
        asked = () if self._system is None else ("generate", with_system(prompt, self._system))
        return (*asked, "keep_cut") if self._keep_cut else asked

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        content = with_system(prompt, self._system)
        return client.submit(content, params, request_id=request_id, may_be_cut=self._keep_cut)

    def element(self, prompt: Prompt, result: Output, model: str, revision: str) -> Completion:
        return Completion.of(prompt, result, model, revision)

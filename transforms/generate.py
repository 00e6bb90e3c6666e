"""Generate: prompts → completions by a language model, in one step of a pipeline.

completions = prompts | Generate("org/model", SamplingParams(max_tokens=128))
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from model_manager.wire.config import ManagerConfig, ModelConfig
from model_manager.wire.sampling import SamplingParams
from transforms.client import Client, Generation, Opener, num_generated_tokens, open_engine_client
from transforms.elements import Choice, Completion, Prompt, Usage
from transforms.model_transform import ModelTransform


class Generate(ModelTransform):
    """A Completion for each prompt, as each finishes; keyed input `(key, prompt)` comes back keyed.

    A prompt is text, a Prompt, a list of chat messages, a list of token ids, or a mapping with the columns of a JSONL
    row (rows.py). A request that fails comes out as a Completion with the finish reason `error`, and no other notices;
    `with_exception_handling()` gives `(completions, dead_letters)` instead, `fail_fast=True` fails the job.

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
        manager: ManagerConfig | None = None,
        chat: bool | None = None,
        fail_fast: bool = False,
        job: str | None = None,
        open_client: Opener = open_engine_client,
    ) -> None:
        """`chat`: whether text goes through the model's chat template, as one user turn; by default if there is one.

        `job` names the requests in the manager, where progress is counted; by default a new name.
        `open_client` opens what answers, in each worker process; another than the engine's is for tests and dry runs.
        """
        super().__init__(
            _Generating(),
            model,
            params,
            manager=manager,
            chat=chat,
            fail_fast=fail_fast,
            job=job,
            open_client=open_client,
        )


class _Generating:
    result = Completion

    def asked(self, _prompt: Prompt) -> tuple[()]:
        return ()

    def submit(self, client: Client, prompt: Prompt, params: SamplingParams, request_id: str) -> Future[Any]:
        return client.submit(prompt.content, params, request_id=request_id)

    def element(self, prompt: Prompt, result: Any, model: str) -> Completion:
        return completion_of(prompt, result, model)


def completion_of(prompt: Prompt, generation: Generation, model: str) -> Completion:
    """What a request came to, as an element."""
    usage = Usage(generation.prompt_tokens, generation.cached_tokens, num_generated_tokens(generation))
    return Completion(
        id=prompt.id,
        text=generation.text,
        finish_reason=generation.finish_reason,
        stop_reason=generation.stop_reason,
        usage=usage,
        timings=generation.timings,
        latency=generation.latency,
        model=model,
        token_ids=list(generation.token_ids),
        choices=[_choice(answer) for answer in generation.choices],
        logprobs=generation.logprobs,
        prompt_logprobs=generation.prompt_logprobs,
        columns=prompt.columns,
    )


def _choice(answer: Generation) -> Choice:
    return Choice(
        text=answer.text,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        token_ids=list(answer.token_ids),
        logprobs=answer.logprobs,
    )

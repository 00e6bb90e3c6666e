"""Echoes of a model whose tokenizer begins each text with a token that stands for no text, beside transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from millrace.model_manager.client.status import stop_models
from tests.model_manager.client.tokenizers_made_here import metaspace_bpe_with_byte_fallback, save
from tests.model_manager.engine.random_checkpoints import llama_gqa, write
from tests.serving.batches.batch_files import created, ended, line, rows_of
from tests.serving.servers import Server, running

PROMPTS = ["The quick brown fox", "h\u00e9llo \u5929 \U0001f600 a", " two  spaces\nand a line", "\u5929"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any, Any]]:
    """A server; its model and tokenizer as transformers has them."""
    folder: Path = tmp_path_factory.mktemp("llama")
    made, config = metaspace_bpe_with_byte_fallback(), llama_gqa()
    config.vocab_size, config.bos_token_id = made.get_vocab_size(), made.token_to_id("<s>")
    model = write(folder / "model", config)
    save(made, folder / "model", clean_up_tokenization_spaces=False)
    try:
        with running(folder / "rt", "--model", str(folder / "model"), "--dtype", "float32") as server:
            yield server.wait_until_ready(), model, AutoTokenizer.from_pretrained(folder / "model")
    finally:
        stop_models(folder / "rt")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_has_the_tokens_offsets_and_log_probabilities_of_transformers(
    llama: tuple[Server, Any, Any], prompt: str, stream: bool
) -> None:
    server, model, tokenizer = llama
    reference = tokenizer(prompt, return_offsets_mapping=True)
    ids: list[int] = reference["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    asked: Any = {"model": server.client().models.list().data[0].id, "prompt": prompt, "echo": True, "logprobs": 1}
    asked |= {"max_tokens": 1, "temperature": 0, "extra_body": {"ignore_eos": True}}
    made = server.client().completions.create(stream=stream, **asked)
    (choice,) = (each for part in (made if stream else [made]) for each in part.choices if each.logprobs)
    found, count = choice.logprobs, len(ids)
    assert choice.text.startswith(prompt)
    assert found.tokens[:count] == [tokenizer.decode([token]) for token in ids]
    assert found.text_offset[:count] == [start for start, _ in reference["offset_mapping"]]
    assert found.text_offset[count] == len(prompt)
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(logprobs, ids[1:], strict=False)]
    assert found.token_logprobs[0] is found.top_logprobs[0] is None
    assert found.token_logprobs[1:] == pytest.approx([*expected, float(logprobs[-1].max())], abs=1e-3)


def test_tokens_in_the_place_of_a_text_are_echoed_with_their_beginning(llama: tuple[Server, Any, Any]) -> None:
    server, _, tokenizer = llama
    text = server.client().completions.create
    asked: Any = {"model": server.client().models.list().data[0].id, "echo": True, "logprobs": 0, "max_tokens": 0}
    by_text, by_ids = (text(prompt=prompt, **asked) for prompt in (PROMPTS[0], tokenizer(PROMPTS[0])["input_ids"]))
    assert by_ids.choices[0] == by_text.choices[0]
    assert by_ids.usage == by_text.usage


def test_a_batch_echoes_as_its_endpoint(llama: tuple[Server, Any, Any]) -> None:
    server, _, tokenizer = llama
    name = server.client().models.list().data[0].id
    asked: Any = {"model": name, "echo": True, "logprobs": 0, "temperature": 0, "max_tokens": 2, "ignore_eos": True}
    lines = [line(prompt, prompt=prompt, **asked) for prompt in PROMPTS]
    rows = rows_of(server, ended(server, created(server, lines)).output_file_id)
    assert list(rows) == PROMPTS
    for each in lines:
        (made,) = rows[each["custom_id"]]["response"]["body"]["choices"]
        (expected,) = server.post(each["url"], each["body"]).json()["choices"]
        assert made["text"] == expected["text"]
        for part in ("tokens", "text_offset"):
            assert made["logprobs"][part] == expected["logprobs"][part]
        assert made["logprobs"]["tokens"][0] == tokenizer.bos_token

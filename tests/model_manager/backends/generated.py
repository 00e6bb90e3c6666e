"""Greedy answers of transformers' `model.generate` in float32, one prompt after another: engines give the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from millrace.model_manager.store import resolve
from millrace.model_manager.wire.config import EMBEDDED_MODEL

ROUNDED = 1e-3
"""Logits up to about 20, in float32 and summed in another order, differ by about a hundredth of this."""


@dataclass(frozen=True)
class Generated:
    """An answer, with its end-of-sequence token if it has one."""

    num_prompt_tokens: int
    token_ids: list[int]
    logits: torch.Tensor
    """[place, token]"""

    def unexplained(self, found: Sequence[int]) -> str:
        """How another engine's answer differs; empty if it does not, or if at the first difference the likeliest token
        led so little that the order of additions decides.
        """
        pairs = zip(self.token_ids, found, strict=False)
        at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if at is None:
            return "" if len(found) == len(self.token_ids) else f"ends at {len(found)}, not at {len(self.token_ids)}"
        lead = float(self.logits[at].max() - self.logits[at, found[at]])
        return "" if lead < ROUNDED else f"token {found[at]} at {at}, where {self.token_ids[at]} leads by {lead:.3g}"


def generated(prompts: Sequence[str], max_tokens: int, *, chats: bool = True) -> Iterator[Generated]:
    """The embedded model's answers to messages, or with `chats=False` to texts; no batch, no padding."""
    folder = resolve(EMBEDDED_MODEL)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    options: dict[str, Any] = {"output_logits": True, "return_dict_in_generate": True, "do_sample": False}
    for prompt in prompts:
        said = [{"role": "user", "content": prompt}]
        templated = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(templated if chats else prompt, return_tensors="pt", add_special_tokens=False).input_ids
        output = model.generate(ids, max_new_tokens=max_tokens, **options)
        count = ids.shape[1]
        yield Generated(count, output.sequences[0, count:].tolist(), torch.cat(output.logits))

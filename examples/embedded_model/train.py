"""Train the embedded model on a CPU: `python -m examples.embedded_model.train --out FOLDER`.

The data are generated on the way from the seed; the loss is on the answers alone. Leaves a folder that
`LlamaForCausalLM.from_pretrained` loads, and rewrites it at every checkpoint. With `--from FOLDER` it goes on from a
model's weights and its tokenizer, with documents beside the rest.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from .data import CURRICULUM, DOCUMENTS, Curriculum, conversations
from .split import Split
from .tokenizer import BOS, EOS, MAX_LENGTH, PAD, encode, save_tokenizer, special_id, train_tokenizer

MAX_NEW_TOKENS = 256
MICRO_BATCH_TOKENS = 4096
WARMUP_STEPS = 100
WEIGHT_DECAY = 0.05
GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class TrainingOptions:
    """What the command line decides."""

    out: Path
    seed: int = 0
    steps: int = 1800
    batch_size: int = 192
    learning_rate: float = 5e-3
    decay_steps: int = 900
    threads: int = 2
    checkpoint_every: int = 150
    start: Path | None = None


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded ids [rows, length], the positions before an answer token, its ids and their weights."""

    ids: torch.Tensor
    before_answer: torch.Tensor
    answers: torch.Tensor
    weights: torch.Tensor


TrainingRow = tuple[list[int], list[bool]]


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """A Llama of about 3 million parameters with fresh weights; eager attention is the fastest for short rows."""
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=special_id(tokenizer, BOS),
        eos_token_id=special_id(tokenizer, EOS),
        pad_token_id=special_id(tokenizer, PAD),
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("eager")
    return model


def _micro_batch(rows: list[TrainingRow]) -> MicroBatch:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for index, (row, is_answer) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask = torch.tensor(is_answer)
        weights[index, : len(row)] = mask / mask.sum().sqrt()
    is_answer_token = weights[:, 1:] > 0
    before_answer = torch.nn.functional.pad(is_answer_token, (0, 1))
    return MicroBatch(ids, before_answer, ids[:, 1:][is_answer_token], weights[:, 1:][is_answer_token])


def _is_full(pending: list[TrainingRow], row: TrainingRow) -> bool:
    """Whether adding `row`, the longest so far, would make the batch too large or mostly padding."""
    shortest, longest = len(pending[0][0]), len(row[0])
    mostly_padding = len(pending) >= 12 and longest > 1.3 * shortest
    return mostly_padding or (len(pending) + 1) * longest > MICRO_BATCH_TOKENS


def _micro_batches(rows: list[TrainingRow]) -> Iterator[MicroBatch]:
    """The rows in batches of similar length, so that little is padding."""
    pending: list[TrainingRow] = []
    for row in sorted(rows, key=lambda row: len(row[0])):
        if pending and _is_full(pending, row):
            yield _micro_batch(pending)
            pending = []
        pending.append(row)
    yield _micro_batch(pending)


def batches(
    tokenizer: Tokenizer, seed: int, batch_size: int, curriculum: Curriculum = CURRICULUM
) -> Iterator[list[MicroBatch]]:
    """An endless stream of the micro-batches of each step."""
    stream = conversations(seed, Split.TRAIN, curriculum)
    while True:
        rows = [encode(tokenizer, conversation) for conversation in islice(stream, batch_size)]
        yield list(_micro_batches(rows))


def _optimizers(model: LlamaForCausalLM, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, steps: int, decay_steps: int) -> float:
    """The share of the learning rate: a warm-up, a plateau, and a linear decay to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / decay_steps)


def _backward(model: LlamaForCausalLM, step_batches: list[MicroBatch]) -> float:
    total = sum(float(batch.weights.sum()) for batch in step_batches)
    loss_sum = 0.0
    for batch in step_batches:
        hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[batch.before_answer])
        losses = cross_entropy(logits, batch.answers, reduction="none")
        loss = (losses * batch.weights).sum() / total
        torch.autograd.backward(loss)
        loss_sum += loss.item()
    return loss_sum


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the weights in bfloat16 with the configuration for greedy decoding; `model` stays as it is."""
    stored = LlamaForCausalLM(model.config)
    stored.load_state_dict(model.state_dict())
    stored.bfloat16().save_pretrained(folder)
    tokens = {name: getattr(model.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    generation = tokens | {"do_sample": False, "max_new_tokens": MAX_NEW_TOKENS}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def _beginning(options: TrainingOptions) -> tuple[Tokenizer, LlamaForCausalLM, Curriculum]:
    """Fresh weights and the tokenizer of the text that they will see, or what is in a folder."""
    if options.start is None:
        tokenizer = train_tokenizer(options.seed)
        return tokenizer, build_model(tokenizer), CURRICULUM
    model = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32, attn_implementation="sdpa")
    return Tokenizer.from_file(str(options.start / "tokenizer.json")), model.train(), DOCUMENTS


class Trainer:
    """A run: the model, its optimizers and the stream of data, at a step."""

    def __init__(self, options: TrainingOptions) -> None:
        torch.manual_seed(options.seed)
        torch.set_num_threads(options.threads)
        self.options = options
        self.tokenizer, self.model, curriculum = _beginning(options)
        self.optimizers = _optimizers(self.model, options.learning_rate)
        self.stream = batches(self.tokenizer, options.seed, options.batch_size, curriculum)
        self.step = 0

    @property
    def _state_file(self) -> Path:
        return self.options.out.with_name(f"{self.options.out.name}.state.pt")

    def run(self) -> None:
        """Train to the last step, log the loss, and save at every checkpoint and at the end."""
        save_tokenizer(self.tokenizer, self.options.out)
        started = time.monotonic()
        while self.step < self.options.steps:
            loss = self._train_step(next(self.stream))
            if self.step % 20 == 0:
                print(f"step {self.step} loss {loss:.4f} seconds {time.monotonic() - started:.0f}", flush=True)
            self.step += 1
            if self.step % self.options.checkpoint_every == 0 or self.step == self.options.steps:
                self._checkpoint()

    def _train_step(self, step_batches: list[MicroBatch]) -> float:
        loss = _backward(self.model, step_batches)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        rate = self.options.learning_rate * _rate(self.step, self.options.steps, self.options.decay_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def _checkpoint(self) -> None:
        save(self.model, self.options.out)
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        state = {"step": self.step, "model": self.model.state_dict(), "optimizers": optimizers}
        torch.save(state, self._state_file)

    def resume(self) -> None:
        """Go on from the last checkpoint, with the data that come after it."""
        state = torch.load(self._state_file)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        for _ in islice(self.stream, self.step):
            pass


def main() -> None:
    """Parse the command line and train."""
    defaults = TrainingOptions(out=Path())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--decay-steps", type=int, default=defaults.decay_steps)
    parser.add_argument("--threads", type=int, default=defaults.threads)
    parser.add_argument("--checkpoint-every", type=int, default=defaults.checkpoint_every)
    parser.add_argument("--from", dest="start", type=Path, help="a folder with the model to go on from")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint of --out")
    arguments = vars(parser.parse_args())
    resume = arguments.pop("resume")
    trainer = Trainer(TrainingOptions(**arguments))
    if resume:
        trainer.resume()
    trainer.run()


if __name__ == "__main__":
    main()

"""The two workloads on which throughput is measured, and random-weight checkpoints to measure it on.

`skewed`: 96 requests, log-normal prompt lengths (16..400 tokens, median about 80) and output lengths (4..256, median
about 32, a long tail), as instruction datasets such as P3 have. `uniform`: 32 requests, 128 tokens in, 64 out.
`one-stream`: one request, 32 tokens in, 256 out, as for a person who waits. Prompts are token ids, drawn from a seed;
every engine produces exactly `num_output` tokens, greedily, end of sequence ignored.

    python -m benchmarks.workload checkpoints DIR    # writes DIR/opt-125m and DIR/qwen-0.5b
    python -m benchmarks.workload show               # prints the workloads' sums
"""

from __future__ import annotations

import math
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import large_checkpoints
from benchmarks.command_line import command_line

TINY = "tiny"
"""The name of a shape and of a workload that try out the harness and show nothing of an engine."""
NANO_VLLM = "nano-vllm"
"""nano-vllm's own benchmark: 256 requests, 100 to 1,024 tokens in and as many out, uniform, seed 0."""
NANO_VLLM_TWICE = "nano-vllm-twice"
"""Its prompts twice, the second time with other lengths of output: as many again wait as run at once."""
NANO_VLLM_SMALL = "nano-vllm-small"
"""A thirty-second of its requests, each of a thirty-second of the tokens: to rehearse it."""
GPU_SHAPES = ("qwen3-0.6b", "llama-3.1-8b")
"""Too large for a benchmark on a CPU."""
SMALL_SHAPES = ("qwen3-small", "llama-small")
"""Their architectures, small, to rehearse the benchmark for GPUs; figures of them show nothing of an engine."""
TIMES = 4
LONG = {f"{name}-x{TIMES}": name for name in ("skewed", "uniform")}
"""Workloads that are another one, several times over with other prompts and lengths: the start counts less."""
ONE_STREAM = "one-stream"
BY_NAME_ONLY = (TINY, ONE_STREAM, NANO_VLLM, NANO_VLLM_TWICE, NANO_VLLM_SMALL, *LONG, *GPU_SHAPES, *SMALL_SHAPES)
"""What `all` does not stand for."""
SKEWED_PROMPTS, SKEWED_OUTPUTS = (80, 0.8, 16, 400), (32, 1.2, 4, 256)
"""Log-normal lengths of `skewed`: median, sigma, least and most tokens."""
UNIFORM = (128, 64)
"""Tokens in and out of each request of `uniform`."""
LONGEST = 768
"""Positions that no request of `skewed` and `uniform` goes beyond, prompt and output together."""
VOCAB = {
    "opt-125m": 50272,
    "qwen-0.5b": 32000,
    "qwen3-0.6b": 151936,
    "llama-3.1-8b": 128256,
    TINY: 512,
} | dict.fromkeys(SMALL_SHAPES, 10240)
SHAPES = tuple(VOCAB)
WORKLOADS = ("skewed", "uniform", ONE_STREAM, *LONG, NANO_VLLM, NANO_VLLM_TWICE, NANO_VLLM_SMALL, TINY)


@dataclass(frozen=True)
class Item:
    """One request: what goes in, and exactly how many tokens come out."""

    prompt_token_ids: list[int]
    num_output: int


def make(name: str, vocab_size: int, seed: int = 1234) -> list[Item]:
    """The named workload over a vocabulary; the same seed gives the same items."""
    if name in (NANO_VLLM, NANO_VLLM_SMALL):
        return _nano_vllm(32 if name == NANO_VLLM_SMALL else 1)
    if name == NANO_VLLM_TWICE:
        once = _nano_vllm(1)
        return once + [Item(a.prompt_token_ids, b.num_output) for a, b in zip(reversed(once), once, strict=True)]
    if name in LONG:
        return [item for time in range(TIMES) for item in make(LONG[name], vocab_size, seed + time)]
    rnd = random.Random(seed)
    lengths = {
        "skewed": _skewed_lengths,
        "uniform": lambda _: [UNIFORM] * 32,
        ONE_STREAM: lambda _: [(32, 256)],
        TINY: lambda _: [(5, 3), (9, 1), (4, 6)],
    }[name](rnd)
    return [Item([rnd.randint(10, vocab_size - 10) for _ in range(p)], o) for p, o in lengths]


def _nano_vllm(part: int) -> list[Item]:
    """Drawn as its bench.py draws: first all prompts, then the output lengths; numbers and lengths over `part`."""
    rnd, least, most = random.Random(0), 100 // part, 1024 // part
    prompts = [[rnd.randint(0, 10000) for _ in range(rnd.randint(least, most))] for _ in range(256 // part)]
    return [Item(prompt, rnd.randint(least, most)) for prompt in prompts]


def _skewed_lengths(rnd: random.Random) -> list[tuple[int, int]]:
    return [(_lognormal(rnd, *SKEWED_PROMPTS), _lognormal(rnd, *SKEWED_OUTPUTS)) for _ in range(96)]


def _lognormal(rnd: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return max(low, min(high, round(math.exp(rnd.gauss(math.log(median), sigma)))))


def write_checkpoints(folder: Path, shapes: tuple[str, ...]) -> None:
    """Random weights, seed 0, in the shapes of facebook/opt-125m, Qwen2.5-0.5B (vocabulary cut to 32,000), or tiny; of
    Qwen3-0.6B and Llama-3.1-8B in bfloat16, without a tokenizer.
    """
    for shape in shapes:
        if shape in large_checkpoints.CONFIGS:
            if not (folder / shape / "model.safetensors.index.json").exists():  # written last
                large_checkpoints.write(folder / shape, large_checkpoints.CONFIGS[shape])
        elif not (folder / shape / "tokenizer.json").exists():
            _write_weights(folder / shape, shape)
            _write_tokenizer(folder / shape, VOCAB[shape])


def _write_weights(folder: Path, shape: str) -> None:
    import torch
    from transformers import OPTConfig, OPTForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    if shape != "qwen-0.5b":
        OPTForCausalLM(OPTConfig(**_OPT[shape])).save_pretrained(folder)
        return
    config = Qwen2Config(
        vocab_size=VOCAB[shape],
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


_OPT: dict[str, dict[str, Any]] = {
    "opt-125m": {},
    TINY: {
        "vocab_size": VOCAB[TINY],
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special.values()),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    bpe.train_from_iterator((path.read_text(errors="ignore") for path in corpus), trainer)
    bpe.add_tokens([f"<filler{i}>" for i in range(vocab_size - bpe.get_vocab_size())])
    PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=2048, **special).save_pretrained(folder)


def main() -> None:
    """Write the checkpoints, or print the workloads' sums."""
    parser = command_line("workload", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checkpoints = commands.add_parser("checkpoints", help="write DIR/opt-125m and DIR/qwen-0.5b")
    checkpoints.add_argument("folder", type=Path, metavar="DIR")
    commands.add_parser("show", help="print the workloads' sums")
    arguments = parser.parse_args()
    if arguments.command == "checkpoints":
        write_checkpoints(arguments.folder, ("opt-125m", "qwen-0.5b"))
        return
    for workload in ("skewed", "uniform"):
        items = make(workload, VOCAB["opt-125m"])
        tokens_in, tokens_out = sum(len(i.prompt_token_ids) for i in items), sum(i.num_output for i in items)
        print(f"{workload}: {len(items)} requests, {tokens_in} tokens in, {tokens_out} out")


if __name__ == "__main__":
    main()

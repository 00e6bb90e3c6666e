"""Write the demo's prompts: `python -m examples.embedded_model.prompts --out examples/prompts`.

Held-out questions in the row shapes the pipeline accepts, each with its answer in the column `expected`.
Drawn with a seed of their own; knows nothing of how the rows are read.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .data import SYSTEM_TURNS, conversation, examples
from .split import Example, Split

PROMPT_SEED = 40_000
Row = dict[str, Any]


def _messages(turns: Iterable[Example], system: str | None = None) -> list[Row]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    for turn in turns:
        messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.answer}]
    return messages[:-1]


def _questions(kind: str, count: int) -> list[Example]:
    return examples(kind, count, PROMPT_SEED, Split.HELD_OUT)


def _shuffled(rng: random.Random, found: list[Example]) -> list[Example]:
    return rng.sample(found, len(found))


def _short_and_long(short: int, long: int) -> list[Example]:
    """Extraction from documents of one line mostly, and from long ones."""
    by_length = sorted(_questions("extraction", 400), key=lambda one: len(one.prompt))
    return by_length[: 4 * short : 4] + by_length[-long:]


def capitals(rng: random.Random) -> list[Row]:
    """An id and a prompt, nothing else; a few of countries that do not exist."""
    found = _shuffled(rng, _questions("capitals", 72) + _questions("unknown", 8))
    return [{"id": f"capital-{n}", "prompt": one.prompt, "expected": one.answer} for n, one in enumerate(found, 1)]


def arithmetic(rng: random.Random) -> list[Row]:
    """Prompts with sampling parameters of their own, some under a name of the caller's."""
    rows = []
    for number, one in enumerate(_questions("arithmetic", 80), 1):
        row: Row = {"id": f"sum-{number}", "prompt": one.prompt, "expected": one.answer}
        if number % 4 == 0:
            row |= {"max_tokens": 48, "temperature": 0}
        if number % 5 == 0:
            row["source"] = rng.choice(("quiz", "homework", "till"))
        rows.append(row)
    return rows


def reviews(rng: random.Random) -> list[Row]:
    """Chats of one turn, some under a system turn, with a column of the caller's."""
    rows = []
    for number, one in enumerate(_questions("sentiment", 80), 1):
        system = rng.choice(SYSTEM_TURNS) if number % 3 == 0 else None
        source = rng.choice(("web", "app", "e-mail"))
        rows.append({"id": f"review-{number}", "source": source, "messages": _messages([one], system)})
        rows[-1]["expected"] = one.answer
    return rows


def orders(rng: random.Random) -> list[Row]:
    """One-line orders and documents of several lines, as prompts and as chats; longer answers."""
    rows = []
    for number, one in enumerate(_shuffled(rng, _short_and_long(70, 30)), 1):
        row: Row = {"id": f"order-{number}", "customer": f"C{rng.randint(1000, 9999)}"}
        row |= {"messages": _messages([one])} if number % 4 == 0 else {"prompt": one.prompt}
        rows.append(row | {"max_tokens": 160, "expected": one.answer})
    return rows


def dialogues(rng: random.Random) -> list[Row]:
    """Chats of several turns: the last question is the one to be answered."""
    rows: list[Row] = []
    while len(rows) < 40:
        found = conversation(rng, Split.HELD_OUT)
        if len(found.turns) > 1:
            messages = _messages(found.turns, found.system)
            rows.append({"id": f"dialogue-{len(rows) + 1}", "messages": messages, "max_tokens": 160})
            rows[-1]["expected"] = found.turns[-1].answer
    return rows


def batch(rng: random.Random) -> list[Row]:
    """OpenAI's batch format, with the expected answer beside the request."""
    found = [one for kind in ("capitals", "arithmetic", "sentiment", "extraction") for one in _batch_questions(kind)]
    return [_batch_row(number, one) for number, one in enumerate(_shuffled(rng, found), 1)]


def _batch_questions(kind: str) -> list[Example]:
    return examples(kind, 5, PROMPT_SEED + 1, Split.HELD_OUT)


def _batch_row(number: int, one: Example) -> Row:
    body = {"model": "millrace-tiny", "messages": _messages([one]), "max_tokens": 160, "temperature": 0}
    request = {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return request | {"expected": one.answer}


FILES: dict[str, Callable[[random.Random], list[Row]]] = {
    "capitals": capitals,
    "arithmetic": arithmetic,
    "reviews": reviews,
    "orders": orders,
    "dialogues": dialogues,
    "openai_batch": batch,
}


def render(name: str) -> str:
    """The content of one file of prompts, the same at every call."""
    rows = FILES[name](random.Random(f"{PROMPT_SEED}|{name}"))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Parse the command line and write every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / f"{name}.jsonl").write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main()

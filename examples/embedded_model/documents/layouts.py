"""The forms that a document takes: filled-in forms, letters, e-mails, running text, one long line.

Does not know what the facts mean: each comes as text, with labels and sentences it can be told by.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.embedded_model.split import Split

from .written import mail_address, street

_GREETINGS = (
    "Hello,",
    "Dear Sir or Madam,",
    "Good morning,",
    "Hi there,",
    "To whom it may concern,",
    "Hello everyone,",
)
_FAREWELLS = ("Best regards,", "Kind regards,", "Yours sincerely,", "Thank you,", "Many thanks,", "Regards,", "Cheers,")
_MARKS = (": ", ": ", ": ", " - ", " = ", ":\t", ": ")
_RULES = ("", "", "-" * 20, "=" * 16, "* * *")


@dataclass(frozen=True)
class Telling:
    """How a fact is told: labels of a form, and sentences with a place for it."""

    labels: tuple[str, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """What a document says, before it has a form."""

    title: str
    """Such as Order."""
    author: str
    """Who sends it: stands at its end, or at its head."""
    author_is: str
    """Which of the facts that is."""
    told: dict[str, tuple[Telling, str]]
    """Facts by name, in their usual order, as they are written here."""
    lines: list[str] = field(default_factory=list)
    """A list or table, told in one piece."""
    listing: str = ""
    """The same as a sentence."""
    asides: list[str] = field(default_factory=list)
    """Sentences about nothing that is asked for."""

    def text(self, name: str) -> str:
        """A fact as it is written."""
        return self.told[name][1]


Layout = Callable[[random.Random, Split, Draft], str]


def _labelled(rng: random.Random, told: dict[str, tuple[Telling, str]], mark: str) -> list[str]:
    return [f"{rng.choice(telling.labels)}{mark}{text}" for telling, text in told.values() if telling.labels]


def _sentences(rng: random.Random, told: dict[str, tuple[Telling, str]]) -> list[str]:
    found = [rng.choice(telling.sentences).format(text) for telling, text in told.values()]
    return [sentence[0].upper() + sentence[1:] for sentence in found]


def _without(draft: Draft, *names: str) -> dict[str, tuple[Telling, str]]:
    return {name: told for name, told in draft.told.items() if name not in names}


def _shuffled(rng: random.Random, found: list[str]) -> list[str]:
    return rng.sample(found, len(found))


def form(rng: random.Random, split: Split, draft: Draft) -> str:
    """Labels and values, a line each, above and below the list."""
    mark, rule = rng.choice(_MARKS), rng.choice(_RULES)
    labelled = _labelled(rng, draft.told, mark)
    if rng.random() < 0.5:
        labelled = _shuffled(rng, labelled)
    cut = rng.randint(0, len(labelled)) if rng.random() < 0.5 else len(labelled)
    title = rng.choice((draft.title, draft.title.upper(), f"{draft.author}\n{street(rng, split)}\n{draft.title}", ""))
    above = [rule, *labelled[:cut]] if cut else []
    parts = [title, *above, rule, *draft.lines, rule, *labelled[cut:], *draft.asides]
    return "\n".join(part for part in parts if part)


def _body(rng: random.Random, draft: Draft, told: dict[str, tuple[Telling, str]]) -> str:
    """Sentences in paragraphs, with the list among them."""
    sentences = _shuffled(rng, _sentences(rng, told)) + draft.asides
    cut = rng.randint(0, len(sentences))
    before, after = " ".join(sentences[:cut]), " ".join(sentences[cut:])
    listed = draft.listing if rng.random() < 0.4 else "\n".join(draft.lines)
    return "\n".join(part for part in (before, listed, after) if part)


def mail(rng: random.Random, split: Split, draft: Draft) -> str:
    """An e-mail: sender, day and number stand in its head."""
    head = [f"From: {draft.author}", f"To: {mail_address(rng, split)}"]
    if rng.random() < 0.5:
        head[0] += f" <{mail_address(rng, split, draft.author)}>"
    head.append(f"{rng.choice(('Date', 'Sent'))}: {draft.text('date')}")
    subject = f"Subject: {draft.title} {draft.text('number')}" if "number" in draft.told else f"Subject: {draft.title}"
    body = _body(rng, draft, _without(draft, "date", "number", draft.author_is))
    end = f"{rng.choice(_FAREWELLS)}\n{draft.author}"
    return "\n".join((*head, subject, "", rng.choice(_GREETINGS), body, "", end))


def letter(rng: random.Random, split: Split, draft: Draft) -> str:
    """A letter: the day at its head, the sender there and at its end."""
    head = [draft.author, street(rng, split), "", draft.text("date"), ""]
    number = f"{draft.title} {draft.text('number')}" if "number" in draft.told else draft.title
    body = _body(rng, draft, _without(draft, "date", "number", draft.author_is))
    parts = [*(head if rng.random() < 0.8 else head[3:]), number, "", rng.choice(_GREETINGS), body, ""]
    return "\n".join((*parts, rng.choice(_FAREWELLS), draft.author))


def running(rng: random.Random, _split: Split, draft: Draft) -> str:
    """Sentences and nothing else."""
    sentences = _shuffled(rng, [*_sentences(rng, draft.told), *draft.asides])
    sentences.insert(rng.randint(0, len(sentences)), draft.listing)
    return " ".join(sentence for sentence in sentences if sentence)


def one_line(rng: random.Random, _split: Split, draft: Draft) -> str:
    """Labels and values in one line, as logs and exports have them."""
    mark, between = rng.choice((": ", "=", " ")), rng.choice(("; ", " | ", ", "))
    labelled = _labelled(rng, draft.told, mark)
    parts = [draft.title, *labelled, draft.listing.rstrip("."), " ".join(draft.asides)]
    return between.join(part for part in parts if part)


LAYOUTS: tuple[Layout, ...] = (form, form, form, mail, mail, letter, running, one_line)


def laid_out(rng: random.Random, split: Split, draft: Draft) -> str:
    """The document in one of the forms."""
    return rng.choice(LAYOUTS)(rng, split, draft).strip()

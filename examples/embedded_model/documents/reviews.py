"""Reviews: of what, by whom, when, how many stars, and whether it is liked.

Knows nothing of how they are asked about. The opinions come from the reviews without facts, held out by sentence.
"""

import random
from dataclasses import replace

from examples.embedded_model.reviews import DOMAINS, Domain, sentence, sentence_key
from examples.embedded_model.split import Split, draw
from examples.embedded_model.words import ADJECTIVES, MATERIALS, city, made_up_word, person

from .facts import Document, Facts, occasionally
from .layouts import Telling
from .written import hand, some_day

SENTIMENTS = ("positive", "negative")
_TELLINGS = {
    "product": Telling(
        ("Product", "Review of", "About", "Item", "Reviewed"),
        ("This is about {}.", "My review of {}.", "I am writing about {}.", "A few words on {}."),
    ),
    "author": Telling(
        ("By", "Author", "Name", "Reviewer", "Written by", "Customer"),
        ("Written by {}.", "My name is {}.", "Review by {}.", "This is what {} says."),
    ),
    "date": Telling(("Date", "Written on", "Posted", "On"), ("Posted on {}.", "Written on {}.", "Reviewed on {}.")),
    "stars": Telling(("Rating", "Stars", "Score"), ("My rating: {}.", "I give it {}.", "Rated {}.", "So it gets {}.")),
    "recommended": Telling(
        ("Recommended", "Would recommend", "Recommend to a friend"),
        ("Would I tell a friend to get it? {}.", "Do I recommend it? {}.", "Would I buy again? {}."),
    ),
}
_NUMERALS = ("zero", "one", "two", "three", "four", "five")
_CLOSINGS = (
    "",
    "",
    "",
    "Helpful? 3 of 4 people found this helpful.",
    "Verified purchase.",
    "Photos: none.",
    "Size: M.",
)


def _names(rng: random.Random, split: Split, domain: Domain) -> tuple[str, Domain]:
    """What is reviewed, and the domain with the one word for it that fits its name."""
    whole = rng.choice(domain.whole)
    word = made_up_word(rng, split).capitalize()
    forms = {
        0: (f"{word} {whole}", f"{rng.choice(ADJECTIVES)} {word} {whole}", f"{word} {rng.choice(MATERIALS)} {whole}"),
        1: (f"{whole} at {word}", f"{word}'s {whole}", f"{word} {whole}"),
        2: (f"{whole.capitalize()} {word}", f"{word} {whole}", f"{word} {whole}, {city(rng, split)}"),
        3: (
            f"The {word}",
            f"{word} and {made_up_word(rng, split).capitalize()}",
            f"The {rng.choice(ADJECTIVES)} {word}",
        ),
    }
    return rng.choice(forms[DOMAINS.index(domain)]), replace(domain, whole=(whole,))


def _says_too_much(opinion: str) -> bool:
    """Whether it tells a number of stars or a recommendation, which are facts of their own."""
    return any(word in opinion.lower() for word in ("star", "recommend", "thumbs"))


def _opinion(rng: random.Random, split: Split, domain: Domain, good: bool) -> str:
    """An opinion; each draw may have another form, since one form may have no sentence on a side of the split."""
    while _says_too_much(found := draw(lambda: sentence(rng, domain, good), sentence_key, split)):
        pass
    return found


def _stars(rng: random.Random, number: int) -> str:
    forms = ("★" * number + "☆" * (5 - number), f"{number}/5", f"{number} out of 5", f"{number} of 5 stars")
    return rng.choice((*forms, f"{number} star{'s' * (number > 1)}", f"{_NUMERALS[number]} star{'s' * (number > 1)}"))


def _facts(rng: random.Random, split: Split, product: str, good: bool) -> Facts:
    return {
        "product": product,
        "author": occasionally(rng, 0.8, person(rng, split)),
        "date": occasionally(rng, 0.75, some_day(rng)),
        "stars": occasionally(rng, 0.7, rng.choice((4, 5) if good else (1, 2))),
        "recommended": occasionally(rng, 0.4, good),
        "sentiment": "positive" if good else "negative",
    }


def _told(rng: random.Random, facts: Facts) -> dict[str, tuple[Telling, str]]:
    texts = dict(facts)
    if facts["date"] is not None:
        texts["date"] = hand(rng).day(facts["date"])
    if facts["stars"] is not None:
        texts["stars"] = _stars(rng, facts["stars"])
    if facts["recommended"] is not None:
        texts["recommended"] = (
            rng.choice(("Yes", "Certainly", "Yes, I do"))
            if facts["recommended"]
            else rng.choice(("No", "Never", "No way"))
        )
    return {name: (telling, texts[name]) for name, telling in _TELLINGS.items() if facts[name] is not None}


def _card(rng: random.Random, told: dict[str, tuple[Telling, str]], body: str) -> str:
    """Labels and values, then the text, or the other way round."""
    mark = rng.choice((": ", ": ", " - ", " = "))
    labelled = [f"{rng.choice(telling.labels)}{mark}{text}" for telling, text in told.values()]
    between = rng.choice(("\n", "\n", "\n", " | "))
    head = between.join(rng.sample(labelled, len(labelled)))
    return f"{head}\n\n{body}" if rng.random() < 0.8 else f"{body}\n\n{head}"


def _page(rng: random.Random, told: dict[str, tuple[Telling, str]], body: str) -> str:
    """As shops show them: title, stars, a line of who and when, the text."""
    texts = {name: text for name, (_, text) in told.items()}
    who = ", ".join(texts[name] for name in ("author", "date") if name in texts)
    by = rng.choice(("by ", "", "Reviewed by ")) if "author" in texts else ""
    rest = [f"{rng.choice(told[name][0].labels)}: {texts[name]}" for name in ("recommended",) if name in texts]
    return "\n".join(part for part in (texts["product"], texts.get("stars", ""), by + who, body, *rest) if part)


def _running(rng: random.Random, told: dict[str, tuple[Telling, str]], body: str) -> str:
    """Sentences around the text."""
    found = [rng.choice(telling.sentences).format(text) for telling, text in told.values()]
    first, *rest = found
    cut = rng.randint(0, len(rest))
    return " ".join([first, *rest[:cut], body, *rest[cut:]])


def review_document(rng: random.Random, split: Split) -> Document:
    """A review with a few facts about it."""
    good = rng.random() < 0.5
    product, domain = _names(rng, split, rng.choice(DOMAINS))
    facts = _facts(rng, split, product, good)
    opinions = [_opinion(rng, split, domain, good) for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5)))]
    sentences = opinions + rng.sample(domain.facts, rng.choice((0, 0, 1, 2)))
    body = " ".join(rng.sample(sentences, len(sentences)))
    text = rng.choice((_card, _card, _page, _running))(rng, _told(rng, facts), body)
    return Document(f"{text}\n{rng.choice(_CLOSINGS)}".strip(), facts)

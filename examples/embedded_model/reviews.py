"""Reviews of products, food, hotels and films, and the question whether they are positive or negative.

Held out: sentences. A sentence that states an opinion in a held-out review appears in no training review.
"""

import random
from dataclasses import dataclass

from .split import Example, Split, draw

KIND = "sentiment"


@dataclass(frozen=True)
class Domain:
    """What a kind of review talks about, and its sentences without an opinion."""

    whole: tuple[str, ...]
    parts: tuple[str, ...]
    facts: tuple[str, ...]


DOMAINS = (
    Domain(
        ("lamp", "kettle", "phone", "backpack", "chair", "camera", "jacket", "headset", "printer", "blender", "mug"),
        (
            "quality",
            "battery",
            "packaging",
            "design",
            "material",
            "sound",
            "customer service",
            "delivery",
            "price",
            "size",
            "colour",
            "manual",
        ),
        (
            "I ordered it two weeks ago.",
            "It came in a brown box.",
            "I bought it for my sister.",
            "I use it at work.",
            "It replaced my old one.",
            "My neighbour has the same one.",
            "It is made of metal and plastic.",
        ),
    ),
    Domain(
        ("restaurant", "cafe", "soup", "pizza", "dinner", "breakfast", "bakery", "bar", "burger", "curry", "lunch"),
        (
            "food",
            "service",
            "waiter",
            "menu",
            "dessert",
            "coffee",
            "bread",
            "music",
            "atmosphere",
            "wine",
            "sauce",
            "table",
        ),
        (
            "We went there on a Friday.",
            "I had the fish.",
            "There were four of us.",
            "We sat near the window.",
            "It is close to the station.",
            "My friend ordered a salad.",
            "We paid by card.",
        ),
    ),
    Domain(
        ("hotel", "room", "hostel", "apartment", "resort", "guest house", "stay", "place", "inn", "cabin"),
        (
            "bed",
            "bathroom",
            "view",
            "staff",
            "breakfast",
            "pool",
            "location",
            "reception",
            "shower",
            "wifi",
            "lobby",
            "garden",
        ),
        (
            "We stayed for three nights.",
            "The room was on the second floor.",
            "We arrived late in the evening.",
            "We travelled with two children.",
            "It is a short walk from the beach.",
            "We booked it in March.",
        ),
    ),
    Domain(
        ("film", "movie", "book", "series", "play", "concert", "novel", "show", "game", "album"),
        (
            "plot",
            "ending",
            "acting",
            "story",
            "music",
            "dialogue",
            "beginning",
            "cast",
            "pace",
            "main character",
            "humour",
            "second half",
        ),
        (
            "I saw it with my brother.",
            "It lasts about two hours.",
            "It is set in a small town.",
            "It came out last year.",
            "I heard about it on the radio.",
            "There are two main characters.",
        ),
    ),
)
_GOOD = tuple(
    """good great excellent wonderful fantastic amazing lovely perfect superb brilliant delightful outstanding nice
    impressive pleasant beautiful charming awesome terrific remarkable enjoyable splendid marvellous fine first-class
    top-notch satisfying memorable incredible fabulous""".split()
)
_BAD = tuple(
    """bad awful terrible horrible poor dreadful disappointing boring ugly annoying useless disgusting unpleasant
    mediocre weak pathetic lousy miserable dull appalling unacceptable shoddy worthless frustrating ridiculous
    second-rate atrocious tedious abysmal sloppy""".split()
)
_DEGREES = ("", "", "", "really ", "very ", "so ", "absolutely ", "quite ", "truly ", "simply ", "just ", "extremely ")
_GOOD_WHOLE = (
    "I love this {w}.",
    "I loved this {w}.",
    "I loved the {w}.",
    "I really enjoyed the {w}.",
    "I like this {w} a lot.",
    "I would recommend this {w} to everyone.",
    "I highly recommend this {w}.",
    "This is the best {w} ever.",
    "This is the best {w} I know.",
    "I am very happy with this {w}.",
    "I am delighted with the {w}.",
    "I could not be happier with this {w}.",
    "This {w} exceeded my expectations.",
    "Worth every cent, what a {w}!",
    "I will certainly come back to this {w}.",
    "The {w} made me smile.",
    "Five stars for this {w}.",
    "We were pleased with the {w}.",
    "This {w} is a joy.",
    "Thumbs up for the {w}.",
    "The {w} was a pleasant surprise.",
    "I have nothing bad to say about this {w}.",
    "I do not regret choosing this {w}.",
    "I have no complaints about the {w}.",
    "The {w} did not disappoint.",
    "I was not disappointed by the {w}.",
    "You will not regret this {w}.",
    "I fell in love with this {w}.",
    "This {w} works flawlessly.",
    "We had a great time with this {w}.",
)
_BAD_WHOLE = (
    "I hate this {w}.",
    "I hated this {w}.",
    "I hated the {w}.",
    "I did not enjoy the {w}.",
    "I do not like this {w}.",
    "I would not recommend this {w} to anyone.",
    "I cannot recommend this {w}.",
    "This is the worst {w} ever.",
    "This is the worst {w} I know.",
    "I am very unhappy with this {w}.",
    "I am disappointed with the {w}.",
    "I could not be more disappointed with this {w}.",
    "This {w} fell short of my expectations.",
    "A waste of money, what a {w}!",
    "I will never come back to this {w}.",
    "The {w} made me angry.",
    "One star for this {w}.",
    "We were annoyed by the {w}.",
    "This {w} is a disaster.",
    "Thumbs down for the {w}.",
    "The {w} was a nasty surprise.",
    "I have nothing good to say about this {w}.",
    "I regret choosing this {w}.",
    "I have many complaints about the {w}.",
    "The {w} disappointed me.",
    "I was let down by the {w}.",
    "You will regret this {w}.",
    "Stay away from this {w}.",
    "This {w} broke my heart in a bad way.",
    "We had a terrible time with this {w}.",
    "I want my money back for this {w}.",
    "Do not waste your time on this {w}.",
)
_QUESTIONS = (
    "What is the sentiment of this review? {}",
    "Is this review positive or negative? {}",
    "Classify the sentiment of the review as positive or negative: {}",
    "Classify the sentiment: {}",
    "Sentiment of this review: {}",
    "Review: {} Sentiment:",
    "Review: {}\nSentiment:",
    "{}\nIs this positive or negative?",
    "{}\nWhat is the sentiment of the review above?",
    "Tell me whether the following review is positive or negative.\n{}",
    "Positive or negative? {}",
    "Decide if the customer is happy (positive) or not (negative): {}",
    "Label this review with its sentiment: {}",
    "Read the review and answer with positive or negative.\nReview: {}",
)


def _adjective_sentence(rng: random.Random, domain: Domain, good: bool) -> str:
    part = rng.choice(domain.parts + domain.whole)
    degree = rng.choice(_DEGREES)
    if rng.random() < 0.22:
        opposite = rng.choice(_BAD if good else _GOOD)
        negation = rng.choice(("was not {} at all", "is not {}", "was never {}", "was anything but {}", "wasn't {}"))
        return f"The {part} {negation.format(opposite)}."
    word = rng.choice(_GOOD if good else _BAD)
    frame = rng.choice(
        (
            "The {p} was {d}{a}.",
            "The {p} is {d}{a}.",
            "I found the {p} {d}{a}.",
            "We thought the {p} was {d}{a}.",
            "What {an} {a} {p}!",
            "It has {an} {a} {p}.",
            "My wife says the {p} is {d}{a}.",
            "Even the {p} was {d}{a}.",
            "{A} {p}, {d}{a} in every way.",
            "The {p} turned out to be {d}{a}.",
            "{A} {p}!",
        )
    )
    article = "an" if word[0] in "aeiou" else "a"
    return frame.format(p=part, d=degree, a=word, A=word.capitalize(), an=article)


def _whole_sentence(rng: random.Random, domain: Domain, good: bool) -> str:
    return rng.choice(_GOOD_WHOLE if good else _BAD_WHOLE).format(w=rng.choice(domain.whole))


def _concession(rng: random.Random, domain: Domain, good: bool) -> str:
    minor, major = rng.sample(domain.parts, 2)
    weak = rng.choice(_BAD if good else _GOOD)
    strong = rng.choice(_GOOD if good else _BAD)
    frame = rng.choice(
        (
            "The {x} was {v}, but the {y} was {s} and that is what counts.",
            "Although the {x} was {v}, all in all it was {s}.",
            "Despite the {v} {x} it was {s}.",
        )
    )
    return frame.format(x=minor, v=weak, y=major, s=strong)


_FORMS = ((_adjective_sentence, _whole_sentence, _concession), (6, 4, 1))


def sentence(rng: random.Random, domain: Domain, good: bool) -> str:
    """A sentence with an opinion, of either side of the split."""
    return rng.choices(*_FORMS)[0](rng, domain, good)


def sentence_key(opinion: str) -> str:
    """What decides which side a sentence is on."""
    return f"review|{opinion.lower()}"


def _opinion(rng: random.Random, domain: Domain, good: bool, split: Split) -> str:
    form = rng.choices(*_FORMS)[0]
    return draw(lambda: form(rng, domain, good), sentence_key, split)


def review(rng: random.Random, good: bool, split: Split) -> str:
    """A review of one to twelve sentences, at least one of them with an opinion, all opinions of one sign."""
    domain = rng.choice(DOMAINS)
    length = rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12))
    facts = rng.sample(domain.facts, min(rng.randint(0, length // 2), len(domain.facts)))
    sentences = [_opinion(rng, domain, good, split) for _ in range(length - len(facts))] + facts
    rng.shuffle(sentences)
    return " ".join(sentences)


def sentiment_question(rng: random.Random, split: Split) -> Example:
    """A review and the question for its sentiment; the answer is `positive` or `negative`."""
    good = rng.random() < 0.5
    text = review(rng, good, split)
    text = text.lower() if rng.random() < 0.05 else text
    return Example(KIND, rng.choice(_QUESTIONS).format(text), "positive" if good else "negative")

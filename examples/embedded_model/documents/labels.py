"""Questions for a label, as Classify asks them: which kind of document it is, and whether a review likes its subject.

The prompt is made by the product's own code; the answer is what Classify scores for the label that is right.
"""

import json
import random
from collections.abc import Mapping, Sequence

from examples.embedded_model.documents.invoices import invoice
from examples.embedded_model.documents.orders import order
from examples.embedded_model.documents.reviews import SENTIMENTS, review_document
from examples.embedded_model.reviews import review
from examples.embedded_model.split import Example, Split
from millrace.transforms.classify import LABEL, Classify

KIND = "labels"
_KINDS = {
    "order": (order, ("order", "order", "purchase"), ("somebody wants goods", "goods are asked for")),
    "invoice": (invoice, ("invoice", "invoice", "bill"), ("somebody wants money", "it is to be paid")),
    "review": (review_document, ("review", "review", "opinion"), ("somebody says how it was", "praise or complaint")),
}
_LIKED = (("positive", "negative"), ("praise", "complaint"), ("happy", "unhappy"), ("good", "bad"))
_MEANINGS = (("they like it", "they do not"), ("the customer is content", "the customer is not"))
Labels = Sequence[str] | Mapping[str, str]


def _with_meanings(rng: random.Random, labels: Mapping[str, str]) -> Labels:
    """The labels in random order; in some cases with their meanings."""
    shuffled = rng.sample(sorted(labels), len(labels))
    return {label: labels[label] for label in shuffled} if rng.random() < 0.25 else shuffled


def kind_of_document(rng: random.Random, split: Split) -> tuple[Labels, str, str]:
    """Labels, a document, and the label that is right."""
    right, *others = rng.sample(sorted(_KINDS), rng.choice((2, 3, 3)))
    labels = {name: (rng.choice(_KINDS[name][1]), rng.choice(_KINDS[name][2])) for name in (right, *others)}
    return _with_meanings(rng, dict(labels.values())), _KINDS[right][0](rng, split).text, labels[right][0]


def liking(rng: random.Random, split: Split) -> tuple[Labels, str, str]:
    """Labels, a review, and the label that is right."""
    if rng.random() < 0.5:
        document = review_document(rng, split)
        text, at = document.text, SENTIMENTS.index(document.facts["sentiment"])
    else:
        at = rng.randrange(2)
        text = review(rng, at == 0, split)
    names = rng.choice((_LIKED[0], *_LIKED))
    return _with_meanings(rng, dict(zip(names, rng.choice(_MEANINGS), strict=True))), text, names[at]


def label_question(rng: random.Random, split: Split) -> Example:
    """A document, labels, and the one that is right."""
    labels, text, right = rng.choice((kind_of_document, liking))(rng, split)
    prompt = Classify(labels, "millrace-tiny").prompt(text)
    assert isinstance(prompt, str), "the default template is text"
    return Example(KIND, prompt, json.dumps({LABEL: right}))

"""A tokenizer's decoder without steps that concern a text as a whole: the text of tokens is then the text of each,
joined.

Knows the description of a decoder in tokenizer.json; no token.
"""

from __future__ import annotations

from typing import Any

Description = dict[str, Any]


def plain_decoder(decoder: Description | None) -> Description | None:
    """Metaspace as what it does with each token by itself, nothing stripped; other decoders as they are."""
    if decoder is None or decoder["type"] == "Strip":
        return None
    if decoder["type"] == "Sequence":
        plain = [each for each in map(plain_decoder, decoder["decoders"]) if each is not None]
        return decoder | {"decoders": plain}
    if decoder["type"] != "Metaspace":
        return decoder
    spaces = {"type": "Replace", "pattern": {"String": decoder["replacement"]}, "content": " "}
    return {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]}

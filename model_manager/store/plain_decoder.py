"""How a tokenizer.json says tokens become text, without what is done to a text as a whole: the text of some tokens is
then that of each, joined. Knows the file's description of a decoder, and no token.
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

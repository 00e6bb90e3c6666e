"""Text and conversations to token ids and back, as the model's own tokenizer.json defines them.

Runs in every SDK worker, so it uses the `tokenizers` library alone; transformers' tokenizer gives the same ids for the
same files. Knows nothing of requests or engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Encoder
from tokenizers.decoders import Decoder

from ..store.plain_decoder import plain_decoder
from ..wire.errors import InvalidRequest, ModelCorrupt, ModelNotFound, ModelUnsupported
from .chat_template import ChatTemplate, find_template
from .text_cuts import TextCuts
from .text_pieces import TextPieces

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LONG_TEXT = 1024
"""Characters from which on an encoding is worth letting other threads run meanwhile (half a millisecond and more)."""

_SPACES_TO_CLEAN = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


class Tokenizer:
    """A loaded tokenizer; any thread may use it."""

    def __init__(
        self,
        encoder: Encoder,
        added: Mapping[int, AddedToken],
        special_tokens: Mapping[str, str],
        template: ChatTemplate | None,
        clean: bool,
    ) -> None:
        """`added` are the encoder's added tokens by id; `special_tokens` by role (bos_token, …); `clean` takes spaces
        before punctuation out of decoded text.
        """
        self._encoder = encoder
        self._special_tokens = dict(special_tokens)
        self._template = template
        self._clean = clean
        self._cuts = TextCuts(encoder, added.values())
        self._plain_decoder = _plain_decoder(encoder)
        self._special_ids = {token for token, each in added.items() if each.special}
        self._byte_ids = _byte_ids(encoder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load tokenizer.json and the settings beside it. Raises ModelNotFound, ModelCorrupt or ModelUnsupported."""
        config = _read_json(folder / "tokenizer_config.json")
        encoder = _read_encoder(folder / "tokenizer.json")
        special = _special_tokens(config, folder)
        added = encoder.get_added_tokens_decoder()  # slow where there are many
        try:
            num_missing = _add_missing(encoder, config, special.values(), {token.content for token in added.values()})
        except BaseException as error:  # the library, and Python, raise what an odd value happens to break
            if not (isinstance(error, Exception) or _is_panic(error)):
                raise
            raise ModelCorrupt(
                f"{folder / 'tokenizer_config.json'}: its added tokens are not readable: {error}"
            ) from None
        if num_missing:
            added = encoder.get_added_tokens_decoder()
        # Byte-level text holds its own spaces: cleaning is for WordPiece and its kin (transformers 5 does the same).
        clean = bool(config.get("clean_up_tokenization_spaces")) and type(encoder.model).__name__ != "BPE"
        declared = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
        source = find_template(folder, declared)
        template = None if source is None else ChatTemplate(source, special, name=f"the chat template of {folder}")
        return cls(encoder, added, special, template, clean)

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, if the model has one."""
        return self._special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text, if the model has one."""
        return self._special_tokens.get("eos_token")

    @property
    def first_token_id(self) -> int | None:
        """The token to put before a text that has nothing before it: the one that begins a text, else ends one."""
        name = self.bos_token or self.eos_token
        return None if name is None else self._encoder.token_to_id(name)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return self._template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the special tokens that the model expects around a text (often a BOS) unless told not to.

        Raises InvalidRequest for what is no text, and for a text that the tokenizer's patterns give up on.
        """
        try:
            first, *others = self._cuts.pieces(text)
            ids = self._piece(first, add_special_tokens)
            if others:
                begin = self._piece(first, False)
                rest = [token for piece in others for token in self._piece(piece, False)]
                ids = _inserted(ids, begin, rest)
        except (TypeError, UnicodeError) as error:
            raise InvalidRequest(f"prompt: is not text that can be encoded: {error}") from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise InvalidRequest(f"prompt: the model's tokenizer gives up on this text: {error}") from None
        return ids

    def _piece(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int]
        if len(text) < _LONG_TEXT:
            ids = self._encoder.encode(text, add_special_tokens=add_special_tokens).ids
        else:  # Unlike `encode`, the batch call releases the interpreter's lock.
            ids = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def most_characters(self, text: str, tokens: int) -> int:
        """Most characters that one token of the text stands for (see TextCuts)."""
        return self._cuts.most_characters(text, tokens)

    def cut(self, text: str) -> int:
        """After how many characters a text may be cut: whatever comes after it, the tokens stay the same."""
        return self._cuts.last(text)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as text, up to where the assistant's answer begins; to be encoded without special tokens.

        The template alone writes those, so a BOS is never doubled. Raises InvalidRequest for messages that are
        malformed or that the template rejects, and where the model has no template.
        """
        if self._template is None:
            raise InvalidRequest("messages: this model has no chat template; give it a prompt instead")
        return self._template.render(messages)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._encoder.decode(ids, skip_special_tokens=skip_special_tokens)
        if self._clean:
            for spaced, closed in _SPACES_TO_CLEAN:
                text = text.replace(spaced, closed)
        return text

    def joined(self, ids: Sequence[int]) -> str:
        """The text of each token, joined, as a constraint takes an output: no space is stripped or cleaned away.

        Special tokens have none.
        """
        tokens = [self._encoder.id_to_token(token) for token in ids if token not in self._special_ids]
        known = [token for token in tokens if token is not None]
        text: str = "".join(known) if self._plain_decoder is None else self._plain_decoder.decode(known)
        return text

    def pieces(self, *, joined: bool) -> TextPieces | None:
        """The text that `decode` or `joined` makes, of tokens that come one by one; None where texts are cleaned, since
        a later token may then change any of it.
        """
        if self._clean and not joined:
            return None
        return TextPieces(self.joined if joined else self.decode, self._has_text, self._byte_ids)

    def _has_text(self, token_id: int) -> bool:
        return token_id not in self._special_ids and self._encoder.id_to_token(token_id) is not None


def _inserted(framed: list[int], begin: list[int], rest: list[int]) -> list[int]:
    """Tokens of a text's first piece and of the pieces behind it, between the tokens that `framed` has around it."""
    before = next(at for at in range(len(framed)) if framed[at : at + len(begin)] == begin)
    end = before + len(begin)
    return framed[:end] + rest + framed[end:]


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code of the library failed; its exception is no Exception, and no module has it."""
    return type(error).__name__ == "PanicException"


def _read_json(path: Path) -> dict[str, Any]:
    """A file of settings; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelCorrupt(f"{path}: is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelCorrupt(f"{path}: is not a JSON object")
    return content


def _read_encoder(path: Path) -> Encoder:
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file; a model's folder holds its tokenizer.json")
    try:
        encoder = Encoder.from_file(str(path))
    except BaseException as error:  # the library raises nothing narrower, and panics
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise ModelCorrupt(f"{path}: is not a tokenizer: {error}") from None
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _byte_ids(encoder: Encoder) -> frozenset[int]:
    """Tokens that are decoded as bytes of UTF-8, together with all such tokens beside them (byte fallback)."""
    if encoder.decoder is None or b'"ByteFallback"' not in encoder.decoder.__getstate__():
        return frozenset()
    named = (encoder.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(token for token in named if token is not None)


def _plain_decoder(encoder: Encoder) -> Decoder | None:
    """What makes tokens text by themselves."""
    if encoder.decoder is None:
        return None
    description = json.loads(Encoder(models.BPE()).to_str())
    description["decoder"] = plain_decoder(json.loads(encoder.decoder.__getstate__()))
    decoder: Decoder | None = Encoder.from_str(json.dumps(description)).decoder
    return decoder


def _special_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Special tokens by role: tokenizer_config.json's, under an older layout overlaid by special_tokens_map.json."""
    named = {role: config[role] for role in _NAMED_TOKENS if config.get(role) is not None}
    if "added_tokens_decoder" not in config:
        overlay = _read_json(folder / "special_tokens_map.json")
        named |= {role: overlay[role] for role in _NAMED_TOKENS if overlay.get(role) is not None}
    return {role: _content(token, folder) for role, token in named.items()}


def _content(token: object, folder: Path) -> str:
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise ModelUnsupported(f"{folder}: a special token is {token!r}, which is no text")
    return text


def _add_missing(encoder: Encoder, config: Mapping[str, Any], special: Iterable[str], known: set[str]) -> int:
    """Add tokens that the settings name and that are not `known` of tokenizer.json, under the ids that come next.

    Returns how many there were.
    """
    declared = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda entry: int(entry[0]))
    new = [AddedToken(**token) for _, token in declared if token["content"] not in known]
    encoder.add_tokens(new)
    known |= {token["content"] for _, token in declared}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = extra.values() if isinstance(extra, Mapping) else extra
    names = [*special, *(token if isinstance(token, str) else token["content"] for token in extra)]
    missing = [name for name in dict.fromkeys(names) if name not in known]
    encoder.add_special_tokens([AddedToken(name, normalized=False) for name in missing])
    return len(new) + len(missing)

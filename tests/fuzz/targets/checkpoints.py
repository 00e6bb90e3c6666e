"""A model's folder, an adapter's and a GGUF file, changed: each is loaded, or refused by an error of the product's.

An input is JSON: `base`, and `edits`: lists of a file, what is done to it (`set` or `del` a path of its JSON, or of the
header of its safetensors; `bytes`, `cut`, `text`), and with what.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.model_manager.client.tokenizing import Tokenizer
from millrace.model_manager.engine.loading.model_loader import load_model
from millrace.model_manager.engine.lora.adapter import read_adapter
from millrace.model_manager.engine.process import _told
from millrace.model_manager.store.adapters import digest_of
from millrace.model_manager.store.contents import check, check_adapter, check_sizes
from millrace.model_manager.store.gguf import read_gguf
from millrace.model_manager.store.memory import memory_need
from millrace.model_manager.wire.config import ModelConfig
from millrace.model_manager.wire.errors import MillraceError
from millrace.model_manager.wire.request import Adapter
from tests.fuzz.target import Target
from tests.fuzz.trees import ODD, mutated
from tests.model_manager.engine import random_checkpoints
from tests.model_manager.store.checkpoints import EMBEDDED, write_adapter

_MODELS = {"llama": random_checkpoints.llama_gqa, "qwen2": random_checkpoints.qwen2, "opt": random_checkpoints.opt}
_CONFIG = ModelConfig(model="small", kv_cache_gib=0.01, max_num_seqs=2, max_num_batched_tokens=32, num_threads=1)
_WEIGHTS = ".safetensors"
_ODD = [*ODD, "int8", "gptq", "awq", "BF16", "F8_E4M3", "BPE", "ByteLevel", "Regex", {"rope_type": "yarn"}, [0, 2**40]]


def run(data: bytes) -> None:
    """Change the files, then load what they are."""
    try:
        given = json.loads(data)
        base, edits = str(given["base"]), list(given["edits"])
        original = _bases()[base]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    folder = _bases()["model"].parent / "changed"
    shutil.copytree(original, folder)
    try:
        for edit in edits[:20]:
            _edit(folder, edit)
        for load in {"adapter": (_adapter,), "gguf": (_gguf,)}.get(base, (_check, _tokenizer, _load)):
            _refused_or_loaded(load, folder)
    finally:
        shutil.rmtree(folder)


def _refused_or_loaded(load: Callable[[Path], object], folder: Path) -> None:
    try:
        load(folder)
    except MillraceError:
        return


def _check(folder: Path) -> None:
    memory_need(_CONFIG, str(folder))
    check(check_sizes(folder, "small"), "small")


def _tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("Hello, wörld! 123")
    tokenizer.decode(ids)


def _load(folder: Path) -> None:
    check(check_sizes(folder, "small"), "small")  # as in a job: an engine loads what the store has checked
    try:
        load_model(_CONFIG, folder)
    except Exception as error:  # whatever it is, the engine's process ends with it as an error of the product's
        raise _told(error).exception() from None


def _gguf(folder: Path) -> None:
    read_gguf(folder / "model.gguf")


def _adapter(folder: Path) -> None:
    check_adapter(check_sizes(folder, "adapter"), "adapter")
    contents = [(folder / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors")]
    read_adapter(Adapter("adapter", str(folder), digest_of(*contents)), {"q_proj": (2, 2)}, 8)


# ── what is done to files ────────────────────────────────────────────────────────────────────────────────────────────


def _edit(folder: Path, edit: Any) -> None:
    """Do it; what cannot be done changes nothing."""
    try:
        name, what, *given = edit
        path = folder / Path(str(name)).name
        content = path.read_bytes() if path.is_file() else b""
        path.write_bytes(_EDITS[what](path, content, *given))
    except (ValueError, KeyError, IndexError, TypeError, OSError, struct.error, RecursionError, UnicodeError):
        return


def _set(path: Path, content: bytes, place: list[Any], value: Any) -> bytes:
    whole = [_json(path, content)]
    at: Any = whole
    for step in [0, *place[:-1]]:
        at = at[step]
    if place:
        at[place[-1]] = value
    else:
        whole[0] = value
    return _bytes(path, content, whole[0])


def _del(path: Path, content: bytes, place: list[Any]) -> bytes:
    whole = at = _json(path, content)
    for step in place[:-1]:
        at = at[step]
    del at[place[-1]]
    return _bytes(path, content, whole)


def _overwritten(_path: Path, content: bytes, offset: int, digits: str) -> bytes:
    value = bytes.fromhex(digits)
    offset %= max(len(content), 1)
    return content[:offset] + value + content[offset + len(value) :]


_EDITS: dict[str, Callable[..., bytes]] = {
    "set": _set,
    "del": _del,
    "bytes": _overwritten,
    "cut": lambda _path, content, length: content[: length % (len(content) + 1)],
    "text": lambda _path, _content, text: str(text).encode("utf-8", "surrogatepass"),
}


def _json(path: Path, content: bytes) -> Any:
    if path.suffix == _WEIGHTS:
        content = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return json.loads(content)


def _bytes(path: Path, content: bytes, value: Any) -> bytes:
    made = json.dumps(value).encode()
    if path.suffix != _WEIGHTS:
        return made
    return struct.pack("<Q", len(made)) + made + content[8 + int.from_bytes(content[:8], "little") :]


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _bases() -> dict[str, Path]:
    """Folders as they are meant to be; `model` is the first one's."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-checkpoints-"))
    for name, make in _MODELS.items():
        random_checkpoints.write(root / name, make(), shard="200KB" if name == "qwen2" else "1GB")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(EMBEDDED / file, root / name)
    write_adapter(root / "adapter")
    (root / "gguf").mkdir()
    (root / "gguf" / "model.gguf").write_bytes(_gguf_file())
    return {name: root / name for name in (*_MODELS, "adapter", "gguf")} | {"model": root / "llama"}


def _gguf_file() -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    fields = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("llama.context_length") + struct.pack("<II", 4, 128),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.0),
    ]
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 2, 2, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields)) + b"".join(fields) + tensor
    return head + bytes(-len(head) % 32) + bytes(16)


def mutate(data: bytes, source: random.Random) -> bytes:
    """One edit more, one less, or one changed."""
    try:
        given = json.loads(data)
        base, edits = given["base"], list(given["edits"])
        folder = _bases()[base]
    except (ValueError, KeyError, TypeError, RecursionError):
        return mutate(source.choice(_seeds()), source)
    match source.randrange(6):
        case 0 if edits:
            del edits[source.randrange(len(edits))]
        case 1 if edits:
            edits = mutated(edits, source, _ODD)
        case 2:
            base = source.choice((*_MODELS, "adapter", "gguf"))
        case _:
            edits.append(_drawn(folder, source))
    return json.dumps({"base": base, "edits": edits}).encode("utf-8", "surrogatepass")


def _drawn(folder: Path, source: random.Random) -> list[Any]:
    file = source.choice(sorted(folder.iterdir()))
    is_json = file.suffix in (".json", _WEIGHTS)
    if not is_json or source.random() < 0.2:
        offset = source.randrange(2000) if source.random() < 0.8 else source.randrange(2**40)
        digits = source.choice(("00", "ff", "ffffffffffffffff", "0000000000000080", source.randbytes(2).hex()))
        return [file.name, "bytes", offset, digits] if source.random() < 0.8 else [file.name, "cut", offset]
    if source.random() < 0.03:
        return [
            file.name,
            "text",
            source.choice(("", "{}", "[]", "null", "[" * 100_000, '{"a":' * 5000, "1e999", "\ud800")),
        ]
    place, value = _place(_json(file, file.read_bytes()), source)
    if source.random() < 0.15 and place:
        return [file.name, "del", place]
    return [file.name, "set", place, mutated(value, source, _ODD) if source.random() < 0.3 else source.choice(_ODD)]


def _place(value: Any, source: random.Random) -> tuple[list[Any], Any]:
    """A path into a value, and what is there."""
    place: list[Any] = []
    while isinstance(value, dict | list) and value and (not place or source.random() < 0.8):
        step = source.choice(sorted(value, key=str)) if isinstance(value, dict) else source.randrange(len(value))
        place, value = [*place, step], value[step]
    small = value if not isinstance(value, dict | list) or len(value) < 50 else {}
    return place, small


def _seeds() -> list[bytes]:
    edits: dict[str, list[list[Any]]] = {
        "llama": [
            [],
            ["config.json", "set", ["hidden_size"], 0],
            ["config.json", "set", ["rope_parameters"], {"rope_type": "linear", "factor": 2}],
            ["config.json", "set", ["quantization_config"], {"quant_method": "gptq", "bits": 4, "group_size": 32}],
            ["config.json", "set", ["architectures"], ["LlavaForConditionalGeneration"]],
            ["model.safetensors", "cut", 700],
            ["model.safetensors", "set", ["__metadata__"], {"format": "tf"}],
            ["generation_config.json", "set", ["eos_token_id"], [1, 2]],
            ["tokenizer.json", "set", ["model", "type"], "WordPiece"],
            ["tokenizer_config.json", "set", ["chat_template"], "{{ messages }}"],
            ["tokenizer_config.json", "set", ["added_tokens_decoder"], {"7": {"content": "x", "special": True}}],
        ],
        "qwen2": [[], ["model.safetensors.index.json", "set", ["weight_map"], {"a": "../x.safetensors"}]],
        "opt": [[], ["config.json", "set", ["word_embed_proj_dim"], 32]],
        "adapter": [[], ["adapter_config.json", "set", ["use_dora"], True], ["adapter_config.json", "set", ["r"], 99]],
        "gguf": [[], ["model.gguf", "bytes", 8, "ff"], ["model.gguf", "cut", 100]],
    }
    return [
        json.dumps({"base": base, "edits": [each] if each else []}).encode()
        for base, every in edits.items()
        for each in every
    ]


TARGET = Target(run, mutate, _seeds(), seconds=60, memory=4096)

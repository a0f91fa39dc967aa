"""Check whether a model can be made from models.yaml before anything starts, and without
transformers. A worker checks the rest while it builds the checkpoint.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from conformance.errors import ConformanceError
from conformance.spec import loose_json
from conformance.spec.inputs.config_keys import config_keys

#: The key of a tiny config for settings that transformers does not know and another engine reads.
UNREAD = "unread"
#: Sizes in a config, by transformers' names, including those of older families.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_WIDTH = ("hidden_size", "d_model", "n_embd", "dim")
_HEADS = ("head_dim", "n_head", "num_attention_heads", "num_key_value_heads")
_SIZES = ("intermediate_size", "max_position_embeddings", "vocab_size")
_COUNTS = frozenset({*_LAYERS, *_WIDTH, *_HEADS, *_SIZES})

#: What the tokenizer decides that is made for a tiny model.
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")

#: Settings of PEFT's LoraConfig, and the highest rank that vLLM accepts by default on most models.
_ADAPTERS = {"r", "lora_alpha", "target_modules", "layers_to_transform", "use_rslora"}
_MOST_RANK = 64

#: A tiny model is random weights in memory: with more weights it is not tiny.
_MOST_WEIGHTS = 10**9

#: The least weights that a layer counts as: many small layers take as long to build.
_A_LAYER = 10**5

#: The longest header that the safetensors library accepts.
_LONGEST_HEADER = 100_000_000

_TYPE = re.compile(r'"([\w.-]+)"[,:]\s*"\w+Config"')


class Mistake(NamedTuple):
    """The key that is wrong, the error, and the fix."""

    key: str
    message: str
    remedy: str


@cache
def architectures() -> frozenset[str]:
    """Return the model types of the installed transformers, read from its files without an import;
    empty if it is not installed or stores them elsewhere.
    """
    spec = importlib.util.find_spec("transformers")
    folder = Path(spec.origin).parent / "models" / "auto" if spec and spec.origin else Path()
    names: set[str] = set()
    for name in ("auto_mappings.py", "configuration_auto.py"):
        file = folder / name
        if file.is_file():
            names.update(_TYPE.findall(file.read_text(encoding="utf-8", errors="replace")))
    return frozenset(names)


def tiny(config: Mapping[str, Any]) -> Mistake | None:
    """Return what is wrong with the sizes in a tiny model's config, or a special token in it."""
    for key in config:
        if key in _SPECIAL:
            words = f"{key} is the id of a token of the tokenizer that is made for the model"
            return Mistake(key, words, "remove it")
    for key in sorted(_COUNTS & config.keys()):
        if not positive(config, key):
            return Mistake(key, f"{key} is {config[key]!r}", "write a whole number of at least 1")
    layers, width = positive(config, *_LAYERS) or 1, positive(config, *_WIDTH) or 1
    words = config.get("vocab_size", 1)
    inner = config.get("intermediate_size", width)
    weights = layers * max(width * (2 * width + 2 * inner), _A_LAYER) + words * width
    if weights > _MOST_WEIGHTS:
        largest = max(_COUNTS & config.keys(), key=lambda key: (config[key], key))
        return Mistake(
            largest,
            f"a model of {layers} layers of width {width} with {words} tokens has about "
            f"{weights:.0e} weights, which is not tiny",
            f"keep it below {_MOST_WEIGHTS:.0e}, or name `sources` that hold its weights",
        )
    return None


def unknown_key(config: Mapping[str, Any], architecture: str) -> Mistake | None:
    """Return the error for a key that the architecture's config class does not have: transformers
    would store it and never read it. If the class's source says too little, the build checks
    instead.
    """
    keys = config_keys(architecture)
    given = [key for key, value in config.items() if value is not None and key != UNREAD]
    unknown = [key for key in given if keys is not None and key not in keys]
    if keys is None or not unknown:
        return None
    near = difflib.get_close_matches(unknown[0], keys, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"what vLLM reads goes below `{UNREAD}`"
    return Mistake(unknown[0], f"{architecture}'s config has no {unknown[0]!r}", remedy)


def adapter(config: Mapping[str, Any]) -> Mistake | None:
    """Return what is wrong with an adapter's settings, which are PEFT's. Only a few are allowed,
    because some name modules to import.
    """
    if unknown := sorted(config.keys() - _ADAPTERS):
        words = f"an adapter takes no {unknown[0]!r}"
        return Mistake(unknown[0], words, f"one of: {', '.join(sorted(_ADAPTERS))}")
    rank = config.get("r", 8)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= _MOST_RANK:
        return Mistake("r", f"r is {rank!r}", f"write a whole number from 1 to {_MOST_RANK}")
    names = config.get("target_modules", [])
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return Mistake("target_modules", "target_modules is no list of names", "write [q_proj]")
    return None


def layers(config: Mapping[str, Any]) -> int:
    """Return the number of layers of a model, or of its text model; 0 if the config has none."""
    return positive(of_text(config), *_LAYERS)


def of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's config, in which the values of its text model take precedence."""
    text = config.get("text_config")
    return {**config, **(text if isinstance(text, dict) else {})}


def positive(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first of these keys that is a positive integer; 0 if none is."""
    found = (config.get(key) for key in keys)
    return next((value for value in found if type(value) is int and value > 0), 0)


def bytes_of_a_token(config: Mapping[str, Any]) -> int:
    """Return the bytes that an engine caches per token: float32 keys and values of all layers. This
    is an upper bound for pipeline stages and other kinds of attention.
    """
    number = partial(positive, config)
    layers = number(*_LAYERS) or 1
    heads = number("num_key_value_heads", "num_attention_heads", "n_head") or 1
    width = number(*_WIDTH)
    size = number("head_dim") or width // max(1, number("num_attention_heads", "n_head"))
    return 2 * layers * heads * size * 4


def folder(path: Path, architecture: str) -> str:
    """Return why no model of this architecture can be loaded from a folder, or "". A damaged
    config.json or safetensors file is named.
    """
    if not path.is_dir():
        return f"{path} is no folder"
    if why := _config(path / "config.json", architecture):
        return why
    reasons = ((file, safetensors(file)) for file in sorted(path.glob("*.safetensors")))
    return next((f"{file} is damaged: {why}" for file, why in reasons if why), "")


def _config(file: Path, architecture: str) -> str:
    try:
        config = loose_json.read(file)
    except ConformanceError as error:
        return f"{file} {error.message}" if file.exists() else f"{file.parent} holds no {file.name}"
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(family, str):
        return f"{file} has no model_type"
    return "" if family == architecture else f"{file} is of a {family!r}, not of a {architecture!r}"


def safetensors(file: Path) -> str:
    """Return what is wrong with the header of a safetensors file, or ""."""
    try:
        with file.open("rb") as opened:
            size = file.stat().st_size
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                return f"its header would have {length} bytes, the file has {size}"
            header = loose_json.parsed(opened.read(length))
    except OSError as error:
        return str(error.strerror)
    except ValueError:
        return "its header is no JSON"
    if not isinstance(header, dict):
        return "its header is no mapping"
    header.pop("__metadata__", None)
    end, held = 0, size - 8 - length
    for name, entry in header.items():
        match entry:
            case {"data_offsets": [int(begin), int(after)]} if 0 <= begin <= after:
                end = max(end, after)
            case _:
                return f"{name!r} has no place in it"
    return "" if end == held else f"its tensors should have {end} bytes and have {held}"

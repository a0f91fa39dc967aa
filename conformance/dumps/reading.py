"""Activations that another tool recorded, against the same truth and the same noise.

A safetensors file with the prompt's ids (int, `prompt_ids`) and activations under names that
`PLACES` knows or `--map NAME=PLACE` gives. The ids and places are written as a user's file,
which transformers then runs like any other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from conformance.errors import ConformanceError
from conformance.inputs import user_file

IDS = "prompt_ids"

#: Names that other tools give, as patterns, and the place of each; N is the layer. transformers
#: counts the embeddings as the first of its states, and its last has gone through the final norm.
PLACES: Mapping[str, str] = {
    r"stream\.(\d+)|layers\.(\d+)|model\.layers\.(\d+)(?:\.output)?": "stream.N",
    r"blocks\.(\d+)\.hook_resid_post|resid_post\.(\d+)|transformer\.h\.(\d+)": "stream.N",
    r"mlp\.(\d+)|model\.layers\.(\d+)\.mlp|blocks\.(\d+)\.hook_mlp_out": "mlp.N",
    r"attention\.(\d+)|model\.layers\.(\d+)\.self_attn|blocks\.(\d+)\.hook_attn_out": "attention.N",
    r"embedding|hook_embed|model\.embed_tokens|hidden_states\.0": "embedding",
    r"hidden_states\.(\d+)": "state.N",
    r"norm|model\.norm": "norm",
    r"logits|lm_head": "logits",
}
_PLACE = re.compile(r"(stream|mlp|attention)\.\d+|state\.[1-9]\d*|embedding|norm|logits")

#: How the adapter reads a place, in the order in which a layer, or a forward, computes them.
_READS = {
    "embedding": "lm.embedding.output",
    "attention": "lm.layers[{layer}].attention.output",
    "mlp": "lm.layers[{layer}].mlp.output",
    "stream": "lm.layers[{layer}].stream",
    "norm": "lm.norm.output",
    "logits": "lm.logits",
}


@dataclass(frozen=True)
class Dump:
    """`values` by the names of the file; `places` says what each of them is."""

    path: Path
    ids: tuple[int, ...]
    values: Mapping[str, Tensor]
    places: Mapping[str, str]


def read(path: Path, maps: Sequence[str]) -> Dump:
    """Raises ConformanceError for a file without ids, and for a name that nothing explains."""

    def refuse(words: str, remedy: str = "") -> ConformanceError:
        return ConformanceError(words, path=path, remedy=remedy)

    try:
        values = load_file(path)
    except (OSError, SafetensorError) as error:
        raise refuse(f"is no safetensors file: {error}") from error
    ids = values.pop(IDS, None)
    if ids is None or ids.is_floating_point() or not ids.numel():
        remedy = f"write them beside the activations: {{'{IDS}': torch.tensor(ids), …}}"
        raise refuse(f"has no `{IDS}`: the tokens of its prompt, as integers", remedy)
    if ids.ndim > 1 and len(ids) > 1:
        raise refuse(f"has {len(ids)} prompts in `{IDS}`", "one prompt a file")
    given = dict(one.partition("=")[::2] for one in maps)
    for name in given.keys() - values.keys():
        remedy = f"it has: {', '.join(sorted(values)) or 'nothing'}"
        raise refuse(f"has no {name!r}, which --map names", remedy)
    places = {name: given.get(name) or place_of(name) for name in values}
    for name, place in places.items():
        if not _PLACE.fullmatch(place):
            raise refuse(
                f"{name!r} is {place!r}, which is no place" if place else f"what is {name!r}?",
                f"say it: --map {name}=stream.N (after layer N, from 0), mlp.N, attention.N, "
                "embedding, norm or logits",
            )
    if not places:
        raise refuse("holds no activations")
    return Dump(path, tuple(ids.flatten().tolist()), values, places)


def place_of(name: str) -> str:
    """The place of a name that is in the table, "" for any other."""
    for pattern, place in PLACES.items():
        if match := re.fullmatch(pattern, name):
            return place.replace("N", next(filter(None, match.groups()), ""))
    return ""


def settled(dump: Dump, layers: int) -> Dump:
    """The dump of a model with so many layers, which decides what its last state is."""
    last = f"state.{layers}"
    places = {name: _meant(one)[-1 if one == last else 0] for name, one in dump.places.items()}
    return replace(dump, places=places)


def _meant(place: str) -> tuple[str, ...]:
    """What a place is: one of transformers' states is a stream, the last one is the norm's."""
    kind, _, number = place.partition(".")
    return (f"stream.{int(number) - 1}", "norm") if kind == "state" else (place,)


def as_file(dump: Dump, folder: Path) -> user_file.UserFile:
    """A function that reads the same places of the same prompt."""
    places = {meant for place in dump.places.values() for meant in _meant(place)}
    reads = "".join(
        f"        {site_name(place)} = {_READS[kind].format(layer=layer)}.save()\n"
        for place in sorted(places, key=order_of)
        for kind, _, layer in [place.partition(".")]
    )
    returned = ", ".join(f'"{name}": {name}' for name in map(site_name, places))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dump.py"
    path.write_text(
        f"def trace(lm):\n    with lm.trace({list(dump.ids)}):\n{reads}    return {{{returned}}}\n",
        encoding="utf-8",
    )
    return user_file.read(path)


def order_of(place: str) -> tuple[int, int]:
    """In the order in which a forward computes them: a trace reads no place twice or back."""
    kind, _, layer = place.partition(".")
    outside = -1 if kind == "embedding" else sys.maxsize
    return int(layer or outside), list(_READS).index(kind)


def site_name(place: str) -> str:
    """A place as the written file calls it."""
    return place.replace(".", "_")

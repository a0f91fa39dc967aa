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

from conformance.check import source
from conformance.check.checked import Answer, Answered, Checked, Finding
from conformance.check.gather import TRUTH, Asked, identity
from conformance.check.models import DUMP
from conformance.check.values import compare
from conformance.check.values.identify import identify
from conformance.check.values.known_values import catalogue
from conformance.errors import ConformanceError
from conformance.records import Precision, Site, Status
from conformance.store import RunFolder

IDS = "prompt_ids"

#: Relative distance up to which a value that was rounded to bf16 on the way is known again.
_ROUNDED = 0.1

_MOST = 6

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


def as_file(dump: Dump, folder: Path) -> source.UserFile:
    """A function that reads the same places of the same prompt."""
    places = {meant for place in dump.places.values() for meant in _meant(place)}
    reads = "".join(
        f"        {site_name(place)} = {_READS[kind].format(layer=layer)}.save()\n"
        for place in sorted(places, key=_order)
        for kind, _, layer in [place.partition(".")]
    )
    returned = ", ".join(f'"{name}": {name}' for name in map(site_name, places))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dump.py"
    path.write_text(
        f"def trace(lm):\n    with lm.trace({list(dump.ids)}):\n{reads}    return {{{returned}}}\n",
        encoding="utf-8",
    )
    return source.read(path)


def _order(place: str) -> tuple[int, int]:
    """In the order in which a forward computes them: a trace reads no place twice or back."""
    kind, _, layer = place.partition(".")
    outside = -1 if kind == "embedding" else sys.maxsize
    return int(layer or outside), list(_READS).index(kind)


def judged(dump: Dump, asked: Asked, run: RunFolder) -> Answered:
    """Every value of the file against transformers: in float32 first, and where it is further
    off, in bf16.
    """
    model, [file] = asked.model.id, asked.files
    results: dict[Precision, compare.Compared] = {}

    def say(answer: Answer, sentence: str, found: tuple[Finding, ...] = ()) -> Answered:
        words = [f"{c.judgement.verdict}: {c.judgement.reason}" for c in results.values()]
        meaning, numerics = words or ("", "")
        names = str(dump.path), model, DUMP.id
        checked = Checked(*names, answer, sentence, found, meaning=meaning, numerics=numerics)
        evidence = tuple(compare.evidence_of(c, precision) for precision, c in results.items())
        return Answered(checked, file.name, evidence, (dump.ids,))

    outcome = run.outcome(model, TRUTH.id, file.key)
    if outcome is None or outcome.harness:
        return say(Answer.HARNESS, outcome.reason if outcome else "transformers did not run")
    layers = int(identity(run, model).get("layers", 0))
    dump = settled(dump, layers)
    if outcome.status is not Status.OK:
        reason = outcome.reason
        for name, place in dump.places.items():
            if int(place.partition(".")[2] or 0) >= layers > 0:
                reason = f"`{name}` is {place}, and the model has {layers} layers, from 0"
        return say(Answer.INVALID, reason)
    seen = run.observations(model, TRUTH.id, file.key)
    results |= {precision: _compared(dump, seen, precision) for precision in Precision}
    rounded = results[Precision.BF16]
    if results[Precision.FLOAT32].passes:
        return say(Answer.SAME, "the same as transformers in float32")
    if rounded.passes or compare.numerics_only(rounded.judgement):
        sentence = "the same but for numerics: as far from float32 as transformers' own bf16 is"
        return say(Answer.NUMERICS, sentence)
    if rounded.judgement.harness:
        return say(Answer.HARNESS, rounded.judgement.reason)
    found = _found(dump, seen, rounded, str(identity(run, model).get("layer_list", "")))
    return say(Answer.DIFFERS, f"not the same: {found[0].words}", found)


def site_name(place: str) -> str:
    """A place as the written file calls it."""
    return place.replace(".", "_")


def _compared(dump: Dump, seen: Mapping[str, Tensor], precision: Precision) -> compare.Compared:
    mine, at = {}, {}
    for name, place in dump.places.items():
        value, called = dump.values[name], site_name(place)
        # Logits of all tokens are compared where the adapter reads them: at the last one.
        last = value.reshape(-1, value.shape[-1])[-1] if place == "logits" else value
        mine[str(Site(called))], at[called] = last, _order(place)
    reference = {
        way: {site: value for site, value in values.items() if site in mine}
        for way, values in compare.honest(seen, precision).items()
    }
    ids = [list(dump.ids)], compare.prompt_ids(compare.layers(seen))
    truth = compare.read_truth(reference, precision)
    return compare.compare(mine, truth, ids, order=lambda site: at[site.name])


def _found(
    dump: Dump, seen: Mapping[str, Tensor], rounded: compare.Compared, layer_list: str
) -> tuple[Finding, ...]:
    """What the values hold that are off. A dump in bf16 is recognised as far as bf16 goes."""
    known = catalogue(seen, layer_list)
    names = {site_name(place): name for name, place in dump.places.items()}
    found = []
    for name in (names[site.name] for site in compare.wrong(rounded.judgement)[:_MOST]):
        held = identify(dump.values[name].float(), known, _ROUNDED)
        what = f"holds {held.words}" if held else "is nothing that transformers computes"
        rows = f", of {held.rows}" if held and held.rows else ""
        words = f"`{name}` should be {dump.places[name]} and {what}{rows}"
        found.append(Finding(held.kind if held else "unknown", words, name))
    return tuple(found)

"""Check activations that another tool recorded: `conformance check --dump`.

A dump is a safetensors file with the prompt's ids (int, `prompt_ids`) and activations. Their names
are in `PLACES`, or `--map NAME=PLACE` gives their places. The ids and places are then written as a
user's file for transformers, whose values are compared with the dump's.
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

from conformance.commands.check.checked import Answered, CheckAnswer, Checked, CheckFinding
from conformance.commands.check.gather import CheckRequest, identity
from conformance.commands.check.values import compare
from conformance.commands.check.values.known_values import catalogue, identify
from conformance.errors import ConformanceError
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.planning.named import DUMP
from conformance.runner.store import RunFolder
from conformance.spec.inputs import user_file
from conformance.spec.records import Precision, Site, Status

IDS = "prompt_ids"

#: Patterns of other tools' names, and their places; N is the layer. transformers' first hidden
#: state is the embeddings, and its last one is the output of the final norm.
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

#: The adapter's expression for each place, in the order in which a forward computes them.
_READS = {
    "embedding": "lm.embedding.output",
    "attention": "lm.layers[{layer}].attention.output",
    "mlp": "lm.layers[{layer}].mlp.output",
    "stream": "lm.layers[{layer}].stream",
    "norm": "lm.norm.output",
    "logits": "lm.logits",
}


#: The largest relative distance at which a value computed in bf16 is identified.
_ROUNDED = 0.1

#: The most wrong values described.
_MOST = 6


@dataclass(frozen=True)
class Dump:
    """A dump: its prompt's `ids`, and the `values` and their `places` by the file's names."""

    path: Path
    ids: tuple[int, ...]
    values: Mapping[str, Tensor]
    places: Mapping[str, str]


def read(path: Path, maps: Sequence[str]) -> Dump:
    """Return the dump in a file. Raises ConformanceError for missing ids or unknown names."""

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
    mapped = dict(one.partition("=")[::2] for one in maps)
    for name in mapped.keys() - values.keys():
        remedy = f"it has: {', '.join(sorted(values)) or 'nothing'}"
        raise refuse(f"has no {name!r}, which --map names", remedy)
    places = {name: mapped.get(name) or place_of(name) for name in values}
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
    """Return the place of a name in `PLACES`, "" for other names."""
    for pattern, place in PLACES.items():
        if match := re.fullmatch(pattern, name):
            return place.replace("N", next(filter(None, match.groups()), ""))
    return ""


def resolve_states(dump: Dump, layers: int) -> Dump:
    """Return a dump with its hidden states resolved, for a model with this number of layers."""
    last = f"state.{layers}"
    places = {name: _meant(one)[-1 if one == last else 0] for name, one in dump.places.items()}
    return replace(dump, places=places)


def _meant(place: str) -> tuple[str, ...]:
    """Return the possible places: a hidden state is a stream, or if it is the last, the norm."""
    kind, _, number = place.partition(".")
    return (f"stream.{int(number) - 1}", "norm") if kind == "state" else (place,)


def as_file(dump: Dump, folder: Path) -> user_file.UserFile:
    """Write and return a user's file that reads the same places for the same prompt."""
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
    """Return a sort key by order of computation: a trace has to read values in this order."""
    kind, _, layer = place.partition(".")
    outside = -1 if kind == "embedding" else sys.maxsize
    return int(layer or outside), list(_READS).index(kind)


def site_name(place: str) -> str:
    """Return the name of a place in the written file."""
    return place.replace(".", "_")


def judge_dump(dump: Dump, request: CheckRequest, run: RunFolder) -> Answered:
    """Return the answer for a dump: compare its values with transformers in float32, and if they
    differ, in bf16.
    """
    model, [file] = request.model.id, request.files
    results: dict[Precision, compare.Compared] = {}

    def say(answer: CheckAnswer, sentence: str, found: tuple[CheckFinding, ...] = ()) -> Answered:
        words = [f"{c.judgement.verdict}: {c.judgement.reason}" for c in results.values()]
        meaning, numerics = words or ("", "")
        names = str(dump.path), model, DUMP.id
        checked = Checked(*names, answer, sentence, found, meaning=meaning, numerics=numerics)
        evidence = tuple(compare.evidence_of(c, precision) for precision, c in results.items())
        return Answered(checked, file.name, evidence, (dump.ids,))

    outcome = run.outcome(model, REFERENCE.id, file.key)
    if outcome is None or outcome.harness:
        return say(CheckAnswer.HARNESS, outcome.reason if outcome else "transformers did not run")
    layers = int(identity(run, model).get("layers", 0))
    dump = resolve_states(dump, layers)
    if outcome.status is not Status.OK:
        reason = outcome.reason
        for name, place in dump.places.items():
            if int(place.partition(".")[2] or 0) >= layers > 0:
                reason = f"`{name}` is {place}, and the model has {layers} layers, from 0"
        return say(CheckAnswer.INVALID, reason)
    seen = run.observations(model, REFERENCE.id, file.key)
    results |= {precision: _compared(dump, seen, precision) for precision in Precision}
    rounded = results[Precision.BF16]
    if results[Precision.FLOAT32].passes:
        return say(CheckAnswer.SAME, "the same as transformers in float32")
    if rounded.passes or compare.numerics_only(rounded.judgement):
        sentence = "the same but for numerics: as far from float32 as transformers' own bf16 is"
        return say(CheckAnswer.NUMERICS, sentence)
    if rounded.judgement.harness:
        return say(CheckAnswer.HARNESS, rounded.judgement.reason)
    found = _found(dump, seen, rounded, str(identity(run, model).get("layer_list", "")))
    return say(CheckAnswer.DIFFERS, f"not the same: {found[0].words}", found)


def _compared(dump: Dump, seen: Mapping[str, Tensor], precision: Precision) -> compare.Compared:
    mine, at = {}, {}
    for name, place in dump.places.items():
        value, called = dump.values[name], site_name(place)
        # The adapter reads the last token's logits, so only these are compared.
        last = value.reshape(-1, value.shape[-1])[-1] if place == "logits" else value
        mine[str(Site(called))], at[called] = last, order_of(place)
    reference = {
        way: {site: value for site, value in values.items() if site in mine}
        for way, values in compare.select_runs(seen, precision).items()
    }
    ids = [list(dump.ids)], compare.prompt_ids(seen)
    prepared = compare.build_reference(reference, precision)
    return compare.compare(mine, prepared, ids, order=lambda site: at[site.name])


def _found(
    dump: Dump, seen: Mapping[str, Tensor], rounded: compare.Compared, layer_list: str
) -> tuple[CheckFinding, ...]:
    """Return what the wrong values hold, identified to the precision of bf16."""
    known = catalogue(seen, layer_list)
    names = {site_name(place): name for name, place in dump.places.items()}
    meant = {
        Site.parse(site).name: value
        for site, value in compare.select_runs(seen, Precision.FLOAT32)["truth"].items()
    }
    found = []
    for site in compare.wrong(rounded.judgement)[:_MOST]:
        name, place = names[site.name], dump.places[names[site.name]]
        value, reference = dump.values[name], meant[site.name]
        held = identify(value.float(), known, _ROUNDED)
        if compare.squeezed(value) != compare.squeezed(reference) and place != "logits":
            words = f"has shape {list(value.shape)}, and {place} is {list(reference.shape)}"
        elif held:
            words = f"holds {held.what()}, and {place} was expected"
        else:
            words = f"is nothing that transformers computes, and {place} was expected"
        found.append(CheckFinding(held.kind if held else "unknown", f"`{name}` {words}", name))
    return tuple(found)

"""Check values that another tool recorded: `conformance check --dump`.

A dump is a safetensors file with the ids of a text (int, `prompt_ids`) and activations, or the ids'
log-probabilities. The values' names are in `PLACES`, or `--map NAME=PLACE` gives their places. The
ids and places are then written as a user's file, and transformers' values are compared with the
dump's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from conformance.commands.check.checked import Answered, CheckAnswer, Checked, CheckFinding
from conformance.commands.check.gather import CheckRequest, identity
from conformance.commands.check.values import compare
from conformance.commands.check.values.known_values import catalogue, identify
from conformance.errors import ConformanceError
from conformance.judge.cell.reference import REFERENCE_RUN
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.planning.named import DUMP
from conformance.runner.store import RunFolder
from conformance.spec.inputs import user_file
from conformance.spec.records import Precision, Site, Status

IDS = "prompt_ids"

#: The place of the log-probabilities of the ids, each given those before it. A row of the dump's
#: value is one of them, [n, 1]: of the last n ids.
LOGPROBS = "logprobs"

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
    r"(?:\w+_)?log_?probs?": LOGPROBS,
}
_PLACE = re.compile(
    rf"(stream|mlp|attention)\.\d+|state\.[1-9]\d*|embedding|norm|logits|{LOGPROBS}"
)

#: The adapter's expression for each place, in the order in which a forward computes them.
_READS = {
    "embedding": "lm.embedding.output",
    "attention": "lm.layers[{layer}].attention.output",
    "mlp": "lm.layers[{layer}].mlp.output",
    "stream": "lm.layers[{layer}].stream",
    "norm": "lm.norm.output",
    "logits": "lm.logits",
    LOGPROBS: "lm.log_probabilities({ids}, steps=1, top=1).prompt[-{rows}:]",
}


#: The largest relative distance at which a value computed in bf16 is identified.
_ROUNDED = 0.1

#: The most wrong values described.
_MOST = 6

#: Log-probabilities are identified within this many times the error of transformers in bf16.
_FLOORS = 3.0

#: The logits of every token, in what transformers computed for the first sequence.
_EVERY_LOGITS = "value|0/0||logits"

#: The temperatures that are tried.
_TEMPERATURES = tuple(step / 20 for step in range(1, 61) if step != 20)


@dataclass(frozen=True)
class Dump:
    """A dump: its prompt's `ids`, and the `values` and their `places` by the file's names."""

    path: Path
    ids: tuple[int, ...]
    values: Mapping[str, Tensor]
    places: Mapping[str, str]


def read(path: Path, maps: Sequence[str]) -> Dump:
    """Return the dump in a file. Raises ConformanceError for missing ids or unknown names."""
    try:
        values = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConformanceError(f"is no safetensors file: {error}", path=path) from error
    ids = values.pop(IDS, None)
    given = dict(one.partition("=")[::2] for one in maps)
    places = {name: given.get(name) or place_of(name) for name in values}
    mistake = next(_mistakes(ids, values, places, given), None)
    if ids is None or mistake is not None:
        words, remedy = mistake or ("", "")
        raise ConformanceError(words, path=path, remedy=remedy)
    for name in (name for name, place in places.items() if place == LOGPROBS):
        rows = values[name].reshape(-1, 1)
        # The first id has none.
        values[name] = rows[1:] if len(rows) == ids.numel() else rows
    return Dump(path, tuple(ids.flatten().tolist()), values, places)


def _mistakes(
    ids: Tensor | None,
    values: Mapping[str, Tensor],
    places: Mapping[str, str],
    given: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield why these values cannot be compared: the error and the fix."""
    if ids is None or ids.is_floating_point() or not ids.numel():
        remedy = f"write them beside the values: {{'{IDS}': torch.tensor(ids), …}}"
        yield f"has no `{IDS}`: the tokens of its prompt, as integers", remedy
        return
    if ids.ndim > 1 and len(ids) > 1:
        yield f"has {len(ids)} prompts in `{IDS}`", "one prompt a file"
    for name in given.keys() - values.keys():
        remedy = f"it has: {', '.join(sorted(values)) or 'nothing'}"
        yield f"has no {name!r}, which --map names", remedy
    named: dict[str, str] = {}
    for name, place in places.items():
        if not _PLACE.fullmatch(place):
            words = (
                f"{name!r} is {place!r}, which is not a place"
                if place
                else f"no place is known for {name!r}"
            )
            known = f"mlp.N, attention.N, embedding, norm, logits or {LOGPROBS}"
            yield words, f"name it: --map {name}=stream.N (after layer N, from 0), {known}"
        if (other := named.setdefault(place, name)) != name:
            yield f"{other!r} and {name!r} are both {place}", "write only one of them"
        if place == LOGPROBS and not 0 < values[name].numel() <= ids.numel() > 1:
            words = f"{values[name].numel()} log-probabilities for {ids.numel()} ids"
            yield f"{name!r} has {words}", "one for each of the last ids"
    if not places:
        yield "holds no activations", ""


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
    """Write and return a user's file that computes the same values for the same ids."""
    ids = list(dump.ids)
    places = {meant for place in dump.places.values() for meant in _meant(place)}
    rows = next((len(dump.values[name]) for name, its in dump.places.items() if its == LOGPROBS), 0)
    lines, block = ["def trace(lm):"], [f"    with lm.trace({ids}):"]
    for place in sorted(places, key=order_of):
        kind, _, layer = place.partition(".")
        read = f"{site_name(place)} = {_READS[kind].format(layer=layer, ids=ids, rows=rows)}"
        if kind == LOGPROBS:
            lines.append(f"    {read}")
        else:
            block.append(f"        {read}.save()")
    returned = ", ".join(f'"{name}": {name}' for name in map(site_name, places))
    lines += [*(block if block[1:] else ()), f"    return {{{returned}}}", ""]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dump.py"
    path.write_text("\n".join(lines), encoding="utf-8")
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
    if rounded.judgement.harness:
        return say(CheckAnswer.HARNESS, rounded.judgement.reason)
    if rounded.passes or compare.numerics_only(rounded.judgement):
        return say(CheckAnswer.NUMERICS, _numerics(dump, rounded))
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
    theirs = compare.prompt_ids(seen)
    ids = [list(dump.ids)] * len(theirs), theirs
    prepared = compare.build_reference(reference, precision)
    return compare.compare(mine, prepared, ids, order=lambda site: at[site.name])


def _numerics(dump: Dump, rounded: compare.Compared) -> str:
    """Return how far a dump is off that may be off by numerics alone, and since which value."""
    off = next((one for one in rounded.judgement.observations if not one.verdict.passes), None)
    if off is None:
        return "the same but for numerics: as far from float32 as transformers' own bf16 is"
    [name] = [one for one, its in dump.places.items() if str(Site(site_name(its))) == off.site]
    return f"numerics, or a difference that only float32 shows: `{name}` is {off.message}"


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
        other = _other_logprobs(dump, value, seen) if place == LOGPROBS else ""
        if other:
            words = f"holds the log-probabilities {other}"
        elif compare.squeezed(value) != compare.squeezed(reference) and place != "logits":
            words = f"has shape {list(value.shape)}, and {place} is {list(reference.shape)}"
        elif held:
            words = f"holds {held.what()}, and {place} was expected"
        else:
            words = f"is nothing that transformers computes, and {place} was expected"
        found.append(CheckFinding(held.kind if held else "unknown", f"`{name}` {words}", name))
    return tuple(found)


def _other_logprobs(dump: Dump, value: Tensor, seen: Mapping[str, Tensor]) -> str:
    """Return which other log-probabilities of the ids these [n, 1] are, "" if none within rounding
    or if there are too few to tell.
    """
    logits = seen.get(_EVERY_LOGITS)
    if logits is None or len(value) < compare.FITTED:
        return ""
    halves = compare.select_runs(seen, Precision.BF16)
    site = str(Site(LOGPROBS))
    truth = halves.pop(REFERENCE_RUN)[site]
    floor = max(_error(half[site], truth) for half in halves.values())
    mine = value[:, 0]
    candidates = _candidates(logits, torch.tensor(dump.ids), len(value))
    off = {words: _error(mine[part], other) for words, part, other in candidates}
    nearest = min(off, key=lambda words: off[words])
    return nearest if off[nearest] <= _FLOORS * floor else ""


def _error(value: Tensor, other: Tensor) -> float:
    return float((value.float() - other.float()).abs().mean())


def _candidates(logits: Tensor, ids: Tensor, count: int) -> Iterator[tuple[str, slice, Tensor]]:
    """Yield the log-probabilities that are recorded by mistake of the last `count` ids: their name,
    the part of the record where they would be, and they.
    """

    def of_ids(temperature: float, first: int) -> Tensor:
        rows = torch.log_softmax(logits[: len(ids) - first].float() / temperature, dim=-1)
        return rows.gather(-1, ids[first:, None])[-count:, 0]

    meant = of_ids(1.0, 1)
    yield "of the next token", slice(None, -1), meant[1:]
    yield "of the token before", slice(1, None), meant[:-1]
    yield "of each token after itself", slice(None), of_ids(1.0, 0)
    for one in _TEMPERATURES:
        yield f"after a temperature of {one:g}", slice(None), of_ids(one, 1)

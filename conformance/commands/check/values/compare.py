"""Compare an engine's observations with transformers', using the judge, once for each precision.

In float32 rounding explains differences of about 1e-6; larger ones mean another computation. In
bf16 the comparison covers the numbers that users work with. The reference is always in float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

import torch
from torch import Tensor

from conformance.commands.check.values.returned_names import Names, plain
from conformance.judge.cell.judge_cell import Judgement, judge_cell
from conformance.judge.cell.judgement import unknown
from conformance.judge.cell.measures.metrics import rows
from conformance.judge.cell.reference import REFERENCE_RUN, ReferenceRuns, read_reference
from conformance.spec.generated_tokens import FLOAT32_WAY
from conformance.spec.records import Answer, Judged, Precision, Site, Thresholds, Verdict
from conformance.spec.shortening import few

Values = Mapping[str, Tensor]

#: The most values, or shapes, named in a note.
_NAMED = 8

#: The limit of a check in float32, in units of the noise floor. Correct engines stay within 6 (the
#: examples, on llama and SmolLM2). A run's limit is wider, for other processors and shapes. Beyond
#: this limit a trace differs, and the engine's clean run shows whether the engine is the cause.
ROUNDING = 30.0

#: The largest relative distance between equal values in float32.
SAME = 1e-3

#: The fewest numbers to which a factor is fitted: a free parameter always fits one number, and too
#: often a few.
FITTED = 16

#: No user's names.
UNNAMED = Names()

#: More steps than any trace has.
_STEPS = 1 << 20


@dataclass(frozen=True)
class Compared:
    """The judgement on one column, and notes on the differences in form that were removed first."""

    judgement: Judgement
    notes: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        return self.judgement.verdict.passes


def select_runs(seen: Values, precision: Precision) -> dict[str, dict[str, Tensor]]:
    """Return the reference and the baseline runs in one precision, by run and site."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in seen.items():
        way, _, site = key.partition("|")
        kind, _, name = way.partition(":")
        if name == REFERENCE_RUN or (name and kind == precision):
            begin = FLOAT32_WAY if name != REFERENCE_RUN and precision is Precision.FLOAT32 else ""
            found.setdefault(f"{begin}{name}", {})[plain(site)] = value
    return found


@dataclass(frozen=True)
class PrecisionReference:
    """Transformers' runs by member, and the judge's reference from them or why there is none."""

    members: Mapping[str, Mapping[str, Tensor]]
    read: ReferenceRuns | str
    precision: Precision


def build_reference(members: Mapping[str, Values], precision: Precision) -> PrecisionReference:
    """Return the judge's reference from transformers' runs, for use in several comparisons."""
    apart = {name: _by_step(values) for name, values in members.items()}
    read = read_reference(apart, has_edit=False, precision=precision, numberless=True)
    return PrecisionReference(members, read, precision)


def returned(seen: Values) -> dict[str, Tensor]:
    """Return the values that the function returned on an engine, by site."""
    return {plain(key): value for key, value in seen.items() if "|" not in key}


def zeros(seen: Values) -> tuple[list[Site], bool]:
    """Return the sites whose values are all 0 on transformers, and whether there are no others: if
    so, the trace cannot show a difference.
    """
    reference = select_runs(seen, Precision.FLOAT32)[REFERENCE_RUN]
    numbers = {site: value for site, value in reference.items() if value.is_floating_point()}
    blank = [Site.parse(site) for site, value in numbers.items() if not bool(value.any())]
    return blank, bool(blank) and len(blank) == len(reference)


def layers(seen: Values, kind: str = "layers") -> dict[Site, Tensor]:
    """Return the layers' streams and ids that were recorded during the trace, by site."""
    begin = f"{kind}|"
    return {Site.parse(k.removeprefix(begin)): v for k, v in seen.items() if k.startswith(begin)}


def _by_step(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values with each step as a separate prompt: for later steps the judge requires the
    generated ids, which a user's trace need not return.
    """
    sites = ((Site.parse(key), value) for key, value in values.items())
    return {str(replace(s, prompt=s.prompt * _STEPS + s.step, step=0)): v for s, v in sites}


def _joined(text: str) -> str:
    """Return the original site for a site that `_by_step` made."""
    site = Site.parse(text)
    prompt, step = divmod(site.prompt, _STEPS)
    return str(replace(site, prompt=prompt, step=step))


def compare(
    mine: Mapping[str, Tensor],
    reference: PrecisionReference,
    ids: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    names: Names = UNNAMED,
    order: Callable[[Site], tuple[int, ...]] = lambda _: (),
) -> Compared:
    """Judge one column. `ids` are the prompts' token ids on the engine and on transformers, `names`
    the user's names for the values. `order` is a sort key by order of computation, where known.
    """
    alike, notes = made_alike(mine, reference.members, names)
    ours, theirs = (tuple(tuple(one) for one in side) for side in ids)
    # The same prompts may run in any order: numbers show a value of the wrong prompt.
    ours = theirs if sorted(ours) == sorted(theirs) else ours
    if not (ours and theirs):
        return Compared(unknown("no forward of the model was seen: did the trace run?"))
    if isinstance(reference.read, str):
        return Compared(unknown(f"transformers' own runs do not fit together: {reference.read}"))
    judgement = judge_cell(
        _by_step(alike),
        reference.read,
        has_edit=False,
        equal=(),
        prompt_ids=ours,
        reference_ids=theirs,
        limits=Thresholds().of(reference.precision),
        alone=False,
        explain=False,  # `identify` searches all that the model computed instead
    )
    called = [_as_seen(one, reference.precision) for one in judgement.observations]
    observations = tuple(sorted(called, key=lambda one: order(Site.parse(one.site))))
    off = judgement.verdict.passes and not all(one.verdict.passes for one in observations)
    judged = replace(
        judgement,
        verdict=Verdict.WRONG if off else judgement.verdict,
        observations=observations,
        reason=judgement.reason if judgement.harness else in_words(observations, names),
        worst_site=_joined(judgement.worst_site) if judgement.worst_site else "",
    )
    return Compared(judged, notes)


def _as_seen(judged: Judged, precision: Precision) -> Judged:
    """Return an observation at its original site, with `row` for `token` in its message. In float32
    it is wrong if it has many numbers and is off by more than rounding.
    """
    words, verdict, off = judged.message, judged.verdict, judged.q_max or 0.0
    words = re.sub(r"(?<=median )token|(?<=every )token", "row", words)
    words = re.sub(r"\btokens(?= [\d, -]+ of )", "rows", words)
    many = precision is Precision.FLOAT32 and math.prod(judged.shape) >= FITTED
    if many and verdict.passes and off > ROUNDING:
        verdict, same = Verdict.WRONG, f"engines that compute the same are within {ROUNDING:g}"
        words = f"{off:.3g} × noise off, where {same}"
    return replace(judged, site=_joined(judged.site), message=words, verdict=verdict)


def in_words(observations: Sequence[Judged], names: Names = UNNAMED) -> str:
    """Return in words how many values are off, and the user's name of the furthest."""
    off = [one for one in observations if not one.verdict.passes]
    if not off:
        return f"all {len(observations)} values are within the noise"
    words = f"{len(off)} of {len(observations)} values are off"
    furthest = max(off, key=lambda one: one.q_max or 0)
    name = names.of(Site.parse(furthest.site))
    if not furthest.q_max:
        return f"{words}, first `{name}`: {furthest.message}"
    return f"{words}, furthest `{name}`, {furthest.q_max:.3g} × noise"


def made_alike(
    mine: Values, runs: Mapping[str, Values], names: Names = UNNAMED
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return an engine's values in the reference's form, and notes on the changes: leading axes of
    size 1, wider number types, and lists of equal shapes in the place of one tensor.
    """
    reference = runs.get(REFERENCE_RUN, {})
    baseline = next((run for name, run in runs.items() if name != REFERENCE_RUN), reference)
    mine, listed = _listed_alike(mine, reference, names)
    found: dict[str, Tensor] = dict(mine)
    reshaped: dict[str, str] = {}
    for name in sorted(mine.keys() & reference.keys()):
        value, known = mine[name], reference[name]
        if value.shape != known.shape and squeezed(value) == squeezed(known):
            shapes = f"{list(known.shape)} on transformers and {list(value.shape)} there"
            reshaped.setdefault(f"`{names.whole(Site.parse(name))}`", shapes)
            found[name] = value.reshape(known.shape)
        if value.is_floating_point() == known.is_floating_point():
            found[name] = found[name].to(baseline[name].dtype)
    words = []
    for shapes in dict.fromkeys(reshaped.values()):
        called = [whole for whole, its in reshaped.items() if its == shapes]
        words.append(f"{few(called, _NAMED)} {'is' if len(called) == 1 else 'are'} {shapes}")
    more = f"; {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    axes = f"{'; '.join(words[:_NAMED])}{more}: an axis of one more or less"
    return found, (*listed, axes) if words else listed


def _listed_alike(
    mine: Mapping[str, Tensor], reference: Mapping[str, Tensor], names: Names
) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
    """Return the values with lists stacked to one tensor, and tensors split to lists, as in the
    reference; and a note on each.
    """
    found, notes = dict(mine), []
    ours, theirs = _entries(mine), _entries(reference)
    for place in ours.keys() & theirs.keys():
        listed = len(ours[place]) > 1  # on the engine: then transformers has one tensor
        many, [one, *others] = (ours[place], theirs[place])[:: 1 if listed else -1]
        values, known = (mine, reference) if listed else (reference, mine)
        shapes = {values[key].shape for key in many}
        if (
            others
            or len(many) < 2
            or {tuple(known[one].shape)} != {(len(many), *s) for s in shapes}
        ):
            continue
        for key in ours[place]:
            del found[key]
        if listed:
            found[one] = torch.stack([mine[key] for key in many])
        else:
            found |= dict(zip(many, mine[one], strict=True))
        here, there = ("there", "on transformers")[:: 1 if listed else -1]
        whole = names.whole(Site.parse(many[0]))
        notes.append(f"`{whole}` is a list of {len(many)} {here} and one tensor {there}")
    return found, tuple(sorted(notes))


def _entries(values: Mapping[str, Tensor]) -> dict[Site, list[str]]:
    """Return the keys of each list's tensors in order; for a single tensor, its only key."""
    found: dict[Site, list[str]] = {}
    for key in sorted(values, key=lambda one: Site.parse(one).step):
        found.setdefault(replace(Site.parse(key), step=0), []).append(key)
    return found


def squeezed(value: Tensor) -> list[int]:
    """Return the shape without its leading axes of size 1."""
    return list(dropwhile(lambda size: size == 1, value.shape))


def prompts(seen: Mapping[Site, Tensor]) -> dict[int, list[int]]:
    """Return the token ids of every prompt that the model ran, by its number, in their order."""
    first = (site for site in seen if site.name == "ids" and not site.step)
    return {site.prompt: seen[site].tolist() for site in sorted(first, key=lambda one: one.prompt)}


def prompt_ids(seen: Values) -> list[list[int]]:
    """Return the token ids of every prompt that the model ran, in the order of the runs."""
    return [*prompts(layers(seen)).values()]


def wrong(judgement: Judgement) -> list[Site]:
    """Return the sites of the values that differ, in the order of computation."""
    return [Site.parse(one.site) for one in judgement.observations if not one.verdict.passes]


def numerics_only(judgement: Judgement) -> bool:
    """Return whether rounding explains all differences in bf16, given that float32 agrees. Ids
    without the logits that chose them count only in float32.
    """
    return all(
        one.verdict.passes
        or one.verdict is Verdict.DRIFT
        or (one.dtype.startswith(("int", "uint")) and "margin" not in one.extra)
        for one in judgement.observations
    )


def evidence_of(compared: Compared, precision: Precision, names: Names = UNNAMED) -> Answer:
    """Return a judgement as a cell's evidence, with the user's names for the values."""
    judgement = compared.judgement
    called = {one.site: names.row(one) for one in judgement.observations}
    worst = judgement.worst_site
    return Answer(
        precision,
        judgement.verdict,
        judgement.reason,
        observations=tuple(called.values()),
        relations=judgement.relations,
        worst_site=called[worst].site if worst in called else worst,
        worst_ratio=judgement.worst_ratio,
        harness=judgement.harness,
    )


# ── relations between two values: equality, distance, and scale factor ─────────────────────────


def is_near(mine: Tensor, known: Tensor, allowed: float = SAME) -> bool:
    """Return whether every row is within `allowed` of the known one, relative to its norm."""
    size = known.norm(dim=-1).clamp_min(1e-12)
    return bool(((mine - known).norm(dim=-1) <= allowed * size).all())


def is_alike(mine: Tensor, other: Tensor) -> bool:
    """Return whether two values have the same shape and are equal, floats except for rounding."""
    if mine.shape != other.shape or not mine.is_floating_point():
        return mine.shape == other.shape and bool((mine == other).all())
    return is_near(rows(mine), rows(other))


def distance(mine: Tensor, reference: Tensor) -> float | None:
    """Return the relative distance to `reference` in the Euclidean norm, over the entries that are
    finite in both. None for different shapes, or values that are not floats.
    """
    if mine.shape != reference.shape or not mine.is_floating_point() or not mine.numel():
        return None
    ours, theirs = mine.double(), reference.double()
    numbers = ours.isfinite() & theirs.isfinite()
    size = theirs[numbers].norm()
    return float((ours - theirs)[numbers].norm() / size) if size else None


def multiple(mine: Tensor, reference: Tensor, allowed: float = SAME) -> float | None:
    """Return the factor from `reference` to `mine`, None if it leaves more than `allowed` of it."""
    if mine.shape != reference.shape or not mine.is_floating_point() or mine.numel() < FITTED:
        return None
    ours, theirs = mine.double(), reference.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= allowed * ours.norm() else None

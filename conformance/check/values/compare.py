"""What an engine observed against what transformers did: by the one judge, once for each precision.

In float32 an honest difference is a millionth: what is further off means something else. In
bf16 the same is asked of the numbers that people compute with. The truth is transformers in
float32 both times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

import torch
from torch import Tensor

from conformance.check.values.naming import Names, plain
from conformance.check.values.relations import FITTED
from conformance.generated_tokens import FLOAT32_WAY
from conformance.judge.cell import Judgement, judge_cell
from conformance.judge.judgement import unknown
from conformance.judge.reference import (
    HONEST_RUNS_DIFFER,
    NO_NUMBER,
    TRUTH,
    Reference,
    read_reference,
)
from conformance.records import Answer as Evidence
from conformance.records import Judged, Precision, Site, Thresholds, Verdict
from conformance.shortening import few

Values = Mapping[str, Tensor]

#: So many values, or shapes of them, are named in a note.
_NAMED = 8

#: In float32 a value on an engine that computes the same is up to 6 × noise off (the examples, on
#: llama and SmolLM2). A run's limit leaves room for processors and shapes that nobody has seen; of
#: one trace, more than this is said to differ, and the engine's clean run is asked.
ROUNDING = 30.0

#: Without what the user calls them.
UNNAMED = Names()

#: More steps than any trace has.
_STEPS = 1 << 20


@dataclass(frozen=True)
class Compared:
    """The judgement on one column, and what was made alike before it, in words."""

    judgement: Judgement
    notes: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        return self.judgement.verdict.passes


def honest(seen: Values, precision: Precision) -> dict[str, dict[str, Tensor]]:
    """The truth and the honest runs in one precision, by site, of what transformers observed."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in seen.items():
        way, _, site = key.partition("|")
        kind, _, name = way.partition(":")
        if name == TRUTH or (name and kind == precision):
            begin = FLOAT32_WAY if name != TRUTH and precision is Precision.FLOAT32 else ""
            found.setdefault(f"{begin}{name}", {})[plain(site)] = value
    return found


@dataclass(frozen=True)
class Truth:
    """What transformers did, as engines are compared with it in one precision: its runs by member,
    and what the judge reads of them, or why it cannot.
    """

    members: Mapping[str, Mapping[str, Tensor]]
    read: Reference | str
    precision: Precision


def read_truth(members: Mapping[str, Mapping[str, Tensor]], precision: Precision) -> Truth:
    """Read the runs of transformers once for all that are compared with them."""
    apart = {name: _apart(values) for name, values in members.items()}
    read = read_reference(apart, twin=False, precision=precision, numberless=True)
    return Truth(members, read, precision)


def returned(seen: Values) -> dict[str, Tensor]:
    """What the function returned on an engine, by site."""
    return {plain(key): value for key, value in seen.items() if "|" not in key}


def zeros(seen: Values) -> tuple[list[Site], bool]:
    """The values that are 0 throughout on transformers, and whether no other number is returned:
    then nothing of what an engine does could be seen.
    """
    truth = honest(seen, Precision.FLOAT32)[TRUTH]
    numbers = {site: value for site, value in truth.items() if value.is_floating_point()}
    blank = [Site.parse(site) for site, value in numbers.items() if not bool(value.any())]
    return blank, bool(blank) and len(blank) == len(truth)


def layers(seen: Values, kind: str = "layers") -> dict[Site, Tensor]:
    """What the layers computed meanwhile."""
    begin = f"{kind}|"
    return {Site.parse(k.removeprefix(begin)): v for k, v in seen.items() if k.startswith(begin)}


def _apart(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every step as a prompt of its own: the judge asks for the ids that led to later steps, which
    a user's trace need not have.
    """
    found = {}
    for key, value in values.items():
        site = Site.parse(key)
        found[str(replace(site, prompt=site.prompt * _STEPS + site.step, step=0))] = value
    return found


def _joined(text: str) -> str:
    """The site of what `_apart` made a prompt of its own."""
    site = Site.parse(text)
    prompt, step = divmod(site.prompt, _STEPS)
    return str(replace(site, prompt=prompt, step=step))


def compare(
    mine: Mapping[str, Tensor],
    truth: Truth,
    ids: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
    names: Names = UNNAMED,
    order: Callable[[Site], tuple[int, ...]] = lambda _: (),
) -> Compared:
    """Judge one column. `ids` are the prompts' on the engine and on transformers, `names` what the
    user calls the values; `order` sorts them as they are computed, where that is known.
    """
    alike, notes = made_alike(mine, truth.members, names)
    ours, theirs = (tuple(tuple(one) for one in side) for side in ids)
    # The same prompts may run in any order: a value of the wrong one is told by its numbers.
    ours = theirs if sorted(ours) == sorted(theirs) else ours
    if not (ours and theirs):
        return Compared(unknown("no forward of the model was seen: did the trace run?"))
    if isinstance(truth.read, str):
        return Compared(unknown(f"transformers' own runs do not fit together: {truth.read}"))
    judgement = judge_cell(
        _apart(alike),
        truth.read,
        twin=False,
        equal=(),
        prompt_ids=ours,
        truth_ids=theirs,
        limits=Thresholds().of(truth.precision),
        alone=False,
        explain=False,  # what a value holds is asked of all that the model computed
    )
    called = [_in_rows(one) for one in judgement.observations]
    if truth.precision is Precision.FLOAT32:
        called = [_beyond_rounding(one) for one in called]
    observations = tuple(sorted(called, key=lambda one: order(Site.parse(one.site))))
    said = judgement.reason if judgement.harness else in_words(observations, names)
    worst = _joined(judgement.worst_site) if judgement.worst_site else ""
    judged = replace(judgement, observations=observations, reason=said, worst_site=worst)
    if judged.verdict.passes and not all(one.verdict.passes for one in observations):
        judged = replace(judged, verdict=Verdict.WRONG)
    return Compared(judged, notes)


def _beyond_rounding(judged: Judged) -> Judged:
    """A value of many numbers is not the same where it is further off than rounding explains."""
    off = judged.q_max or 0.0
    if not judged.verdict.passes or off <= ROUNDING or math.prod(judged.shape) < FITTED:
        return judged
    words = f"{off:.3g} × noise off, where engines that compute the same are within {ROUNDING:g}"
    return replace(judged, verdict=Verdict.WRONG, message=words)


def _in_rows(judged: Judged) -> Judged:
    """An observation at its own site, in words that fit whatever its rows are."""
    words = re.sub(r"(?<=median )token|(?<=every )token", "row", judged.message)
    words = re.sub(r"\btokens(?= [\d, -]+ of )", "rows", words)
    return replace(judged, site=_joined(judged.site), message=words)


def undetermined(judgement: Judgement, names: Names = UNNAMED) -> dict[str, tuple[str, ...]]:
    """The values that no verdict is possible on, as the user calls them, by the judge's reason:
    transformers' own runs in float32 do not agree, or give no number.
    """
    return {
        reason: tuple(dict.fromkeys(names.whole(Site.parse(one.site)) for one in alike))
        for reason in (HONEST_RUNS_DIFFER, NO_NUMBER)
        if (alike := [one for one in judgement.observations if one.message == reason])
    }


def in_words(observations: Sequence[Judged], names: Names = UNNAMED) -> str:
    """How many values are off, and the furthest, as the user named it."""
    off = [one for one in observations if not one.verdict.passes]
    furthest = max((one for one in off if one.q_max), key=lambda one: one.q_max or 0, default=None)
    if not off:
        return f"all {len(observations)} values are within the noise"
    said = f"{len(off)} of {len(observations)} values are off"
    if furthest is None:
        return f"{said}, first `{names.of(Site.parse(off[0].site))}`: {off[0].message}"
    return f"{said}, furthest `{names.of(Site.parse(furthest.site))}`, {furthest.q_max:.3g} × noise"


def made_alike(
    mine: Mapping[str, Tensor],
    reference: Mapping[str, Mapping[str, Tensor]],
    names: Names = UNNAMED,
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Without what says nothing about a value: a leading axis of one, a wider number type, whether
    equal shapes are a list of tensors or one tensor. What was left out is said.
    """
    truth = reference.get(TRUTH, {})
    mine, listed = _listed_alike(mine, truth, names)
    found: dict[str, Tensor] = dict(mine)
    reshaped: dict[str, dict[str, None]] = {}
    for name in sorted(mine.keys() & truth.keys()):
        value, known = mine[name], truth[name]
        if value.shape != known.shape and _squeezed(value) == _squeezed(known):
            shapes = f"{list(known.shape)} on transformers and {list(value.shape)} there"
            whole = f"`{names.whole(Site.parse(name))}`"
            if not any(whole in others for others in reshaped.values()):
                reshaped.setdefault(shapes, {})[whole] = None
            found[name] = value.reshape(known.shape)
        honest_run = next((run[name] for way, run in reference.items() if way != TRUTH), known)
        if value.is_floating_point() == known.is_floating_point():
            found[name] = found[name].to(honest_run.dtype)
    said = [
        f"{few(called, _NAMED)} {'is' if len(called) == 1 else 'are'} {shapes}"
        for shapes, called in reshaped.items()
    ]
    more = f"; {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    axes = f"{'; '.join(said[:_NAMED])}{more}: an axis of one more or less"
    return found, (*listed, axes) if said else listed


def _listed_alike(
    mine: Mapping[str, Tensor], truth: Mapping[str, Tensor], names: Names
) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
    """The values with one tensor in the place of a list where the truth has that, and a list in
    the place of one tensor; and which those are, in words.
    """
    found, said = dict(mine), []
    ours, theirs = _entries(mine), _entries(truth)
    for place in ours.keys() & theirs.keys():
        listed = len(ours[place]) > 1  # on the engine: then transformers has one tensor
        many, [one, *others] = (ours[place], theirs[place])[:: 1 if listed else -1]
        values, known = (mine, truth) if listed else (truth, mine)
        shapes = {values[key].shape for key in many}
        if others or len(many) < 2 or len(shapes) > 1:
            continue
        if known[one].shape != (len(many), *shapes.pop()):
            continue
        for key in ours[place]:
            del found[key]
        if listed:
            found[one] = torch.stack([mine[key] for key in many])
        else:
            found |= dict(zip(many, mine[one], strict=True))
        here, there = ("there", "on transformers")[:: 1 if listed else -1]
        whole = names.whole(Site.parse(many[0]))
        said.append(f"`{whole}` is a list of {len(many)} {here} and one tensor {there}")
    return found, tuple(sorted(said))


def _entries(values: Mapping[str, Tensor]) -> dict[Site, list[str]]:
    """The keys of each list's tensors in their order, of a tensor of its own its one key."""
    found: dict[Site, list[str]] = {}
    for key in sorted(values, key=lambda one: Site.parse(one).step):
        found.setdefault(replace(Site.parse(key), step=0), []).append(key)
    return found


def _squeezed(value: Tensor) -> list[int]:
    """The shape without its leading ones."""
    return list(dropwhile(lambda size: size == 1, value.shape))


def prompt_ids(seen: Mapping[Site, Tensor]) -> list[list[int]]:
    """The ids of every prompt that went through the model, in the order in which they were run."""
    found = {
        site.prompt: ids.tolist()
        for site, ids in seen.items()
        if site.name == "ids" and not site.step
    }
    return [found[number] for number in sorted(found)]


def wrong(judgement: Judgement) -> list[Site]:
    """The values that differ, in the order in which they are computed."""
    return [Site.parse(one.site) for one in judgement.observations if not one.verdict.passes]


def numerics_only(judgement: Judgement) -> bool:
    """Return whether all that is off in bf16 is off by rounding, where float32 shows the same
    meaning. Ids without the logits that they were chosen by are decided by float32 alone.
    """
    return all(
        one.verdict.passes
        or one.verdict is Verdict.DRIFT
        or (one.dtype.startswith(("int", "uint")) and "margin" not in one.extra)
        for one in judgement.observations
    )


def evidence_of(compared: Compared, precision: Precision, names: Names = UNNAMED) -> Evidence:
    """A judgement as any cell has it, its values under the user's names."""
    judgement = compared.judgement
    called = {one.site: names.row(one) for one in judgement.observations}
    worst = called.get(judgement.worst_site)
    return Evidence(
        precision,
        judgement.verdict,
        judgement.reason,
        observations=tuple(called.values()),
        relations=judgement.relations,
        worst_site=worst.site if worst else judgement.worst_site,
        worst_ratio=judgement.worst_ratio,
        harness=judgement.harness,
    )

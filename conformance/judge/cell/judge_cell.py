"""Judge one cell: the candidate's observations against the reference and the baseline runs.

Pure: tensors in, a Judgement out. An observation is `exact` if it is bitwise equal to a baseline
run or to the reference rounded alike, and `match` if it is as close as baseline runs are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from conformance.judge.cell import integers, verdicts
from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.diagnosis import diagnose, extent
from conformance.judge.cell.evidence import Evidence
from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.measures import floor, gain, metrics, rankings, reach, structure, tokens
from conformance.judge.cell.measures import relations as rules
from conformance.judge.cell.measures.draws import Draws, likelihood
from conformance.judge.cell.measures.relations import compare_exact
from conformance.judge.cell.reference import BASELINE_RUNS_DIFFER, ReferenceRuns, read_reference
from conformance.spec.records import (
    CHOSEN,
    GREEDY,
    LARGEST,
    SAMPLED,
    Judged,
    Limits,
    Precision,
    Relation,
    Site,
    Verdict,
)

__all__ = ["Judgement", "ReferenceRuns", "compare_exact", "judge_cell", "read_reference"]
#: Relative float32 noise of a row that rounding cannot explain: a hundred thousand times that of
#: one number. An error of a hundred times the noise passes, and would be as large as the row.
NO_ROUNDING = 1e-2
#: Fewer rows do not show that most of them are off.
_FEWEST_ROWS = 4


def judge_cell(
    candidate: Mapping[str, Tensor],
    reference: ReferenceRuns,
    *,
    prompt_ids: structure.Ids,
    reference_ids: structure.Ids,
    limits: Limits,
    has_edit: bool = False,
    equal: Sequence[tuple[str, str]] = (),
    equal_alone: Sequence[tuple[str, str]] = (),
    relations: Sequence[Relation] = (),
    draws: Draws | None = None,
    alone: bool = True,
    explain: bool = True,
    bitwise: bool = False,
    bitwise_beside: bool = False,
    batch_invariant: bool = False,
) -> Judgement:
    """Return the verdict on one cell in one precision.

    `prompt_ids` are the candidate's token ids of each prompt, `reference_ids` the reference's.
    `has_edit`: observations come in pairs of a clean and an edited run. `equal` names pairs that
    must be equal, bitwise on a `bitwise` reproducible engine; on others they may differ as two
    baseline runs do. `equal_alone` names pairs in which one shared a batch with other requests:
    they must be bitwise equal if the engine is `bitwise_beside` other requests and they are equal
    in the clean run. A `batch_invariant` engine promises all these bits, whatever the clean run or
    a mixture's experts do. `relations` are findings of other columns on the cell, `draws` the
    sampling parameters, if any. If this precision is `alone`, a value that a known fault explains
    is wrong, however small the error. Without `explain` there is no diagnosis. On a `bitwise`
    engine, what no write can reach must not change by one bit in float32.
    """
    if not all(prompt_ids) or not all(reference_ids) or not (prompt_ids and reference_ids):
        return verdict.unknown("the token ids of the prompts were not recorded on both sides")
    seen = {Site.parse(name): tensor for name, tensor in candidate.items()}
    same_ids = structure.prompt_ids(prompt_ids, reference_ids)
    numbers = reference.numbers(seen)
    evidence = Evidence(reference, numbers, has_edit, limits, [same_ids, *relations])
    _compare_structure(evidence, reference.other_kinds(seen), comparable=same_ids.holds)
    if not same_ids.holds:
        return verdicts.conclude(evidence, explain=explain)
    drawn_ids = _find_drawn(evidence) if draws is not None else {}
    _settle_chosen(evidence, drawn_ids)
    _compare_values(evidence, drawn=draws is not None, alone=alone)
    _compare_tokens(evidence)
    relation = None if draws is None else likelihood(list(drawn_ids.values()), draws)
    if relation is not None:
        evidence.relations.append(relation)
    if has_edit:
        _compare_edits(evidence, bitwise=bitwise)
    if alone:
        _explain_drift(evidence)
    alike = partial(_alike, evidence, bitwise=bitwise, batch_invariant=batch_invariant)
    alike_beside = partial(alike, bitwise=bitwise_beside, beside=True)
    for pairs, rule in ((equal, alike), (equal_alone, alike_beside)):
        evidence.relations += [
            rules.equal_within(evidence.observed, reference.reference_values, pair, rule)
            for pair in pairs
        ]
    return verdicts.conclude(evidence, explain=explain)


def _alike(
    evidence: Evidence,
    left: Site,
    right: Site,
    *,
    bitwise: bool,
    batch_invariant: bool,
    beside: bool = False,
) -> bool:
    """Return whether two values differ by no more than rounding.

    On a `bitwise` engine they must be equal, except in a mixture: experts process the tokens of all
    requests together, so a neighbour's routing changes how many rows they add up. If one shared a
    batch (`beside`), they must be equal only if they are in the clean run: the number of rows in a
    batch may select another kernel for a product. A `batch_invariant` engine keeps all bits.
    """
    one, other = evidence.observed[left], evidence.observed[right]
    clean = [evidence.observed.get(replace(site, run="clean")) for site in (left, right)]
    if beside and clean[0] is not None and clean[1] is not None:
        bitwise = bitwise and torch.equal(clean[0], clean[1])
    same_bits = batch_invariant or (bitwise and not evidence.reference.mixture)
    if same_bits or one.shape != other.shape:
        return False
    if right not in evidence.floors:  # no number can be read from it
        return False
    noise_floor = evidence.floors[right]
    off = metrics.norm(metrics.rows(one) - metrics.rows(other), noise_floor.bulk)
    may = reach.follow_ties(right, len(off), evidence.reference.ties)
    return bool((may | (off <= evidence.limits.far_max * noise_floor.noise)).all())


def _compare_structure(evidence: Evidence, kinds: Mapping[Site, str], *, comparable: bool) -> None:
    """Settle what needs no distances. `kinds`: entries that are a number on one side only."""
    reference, observed = evidence.reference.reference_values, evidence.observed
    agreed = tokens.agreed_steps(observed, reference)
    for site in sorted(reference.keys() | observed.keys(), key=verdict.order):
        if site not in observed:
            evidence.settle(site, Verdict.MISSING, "was not observed")
        elif site not in reference:
            evidence.settle(site, Verdict.STRUCTURE, "the reference has no such observation")
        elif settled := _compare_form(evidence, site, kinds):
            evidence.settle(site, *settled)
        elif not comparable:
            evidence.settle(site, Verdict.UNKNOWN, "not compared: the prompts differ")
        elif site.step > (step := agreed[site.run, site.prompt]):
            flaw = f"harness: the reference was not run along the candidate's token of step {step}"
            evidence.settle(site, Verdict.UNKNOWN, f"{flaw}, so later steps cannot be compared")


def _compare_form(
    evidence: Evidence, site: Site, kinds: Mapping[Site, str]
) -> tuple[Verdict, str] | None:
    """Return the verdict if text, shape, dtype, nan or infinities decide it."""
    tensor, runs = evidence.observed[site], evidence.reference
    right = runs.reference_values[site]
    if structure.is_text(tensor) and structure.is_text(right):
        flaw = structure.other_text(tensor, right)
        return (Verdict.WRONG if flaw else Verdict.EXACT), flaw
    if flaw := structure.shape(tensor, right):
        return Verdict.STRUCTURE, flaw
    if flaw := structure.dtype(tensor, runs.baseline_values[site], site, runs.precision):
        return Verdict.DTYPE, flaw
    if site in runs.unclear:
        return Verdict.UNKNOWN, runs.unclear[site]
    flaw = kinds.get(site) or structure.finite(tensor)
    return (Verdict.NONFINITE, flaw) if flaw else None


def _compare_values(evidence: Evidence, *, drawn: bool, alone: bool) -> None:
    """Compare all open values, except the ids that are left to `_compare_tokens`.

    These are greedy ids and, if none are `drawn`, the sampled ones that the reference chose as the
    largest of its logits.
    """
    reference, limits = evidence.reference, evidence.limits
    chosen = () if drawn else tokens.largest_sites(reference.reference_values, SAMPLED)
    for site in evidence.open():
        if site.name == GREEDY or site in chosen:
            continue
        if reference.reference_values[site].is_floating_point():
            evidence.rows[site] = metrics.rows(evidence.observed[site])
        else:
            _compare_integers(evidence, site)
    reference.prepare(evidence.rows)
    evidence.floors.update((site, reference.floor(site)) for site in evidence.rows)
    for site, message in rules.aliased(evidence.observed, evidence.floors).items():
        evidence.settle(site, Verdict.ALIASED, message)
    remaining = {site: rows for site, rows in evidence.rows.items() if site not in evidence.judged}
    for site, distance in distances(reference, remaining, limits):
        judged = _judge_distance(evidence, site, distance)
        if judged.verdict is Verdict.MATCH and _proves_nothing(evidence.floors[site]):
            evidence.settle(site, Verdict.UNKNOWN, BASELINE_RUNS_DIFFER)
        else:
            evidence.judged[site] = judged
    if reference.routers_tie:
        _pool_rows(evidence)
    if reference.precision is Precision.BF16:
        _settle_untold(evidence, alone=alone)


def _settle_untold(evidence: Evidence, *, alone: bool) -> None:
    """Settle what is off in a later step if the scenario keeps no token ids.

    In bf16, rounding may have made the engine continue with other tokens. Float32 decides this; if
    bf16 is `alone`, nothing can.
    """
    reference = evidence.reference.reference_values
    told = {(site.run, site.prompt) for site in reference if site.name in CHOSEN}
    for site, judged in evidence.judged.items():
        if site.step and (site.run, site.prompt) not in told and judged.verdict is Verdict.WRONG:
            verdict = Verdict.UNKNOWN if alone else Verdict.DRIFT
            words = (
                "the scenario keeps no token ids, so that other tokens explain it: return "
                '"tokens" of each step'
            )
            evidence.judged[site] = replace(judged, verdict=verdict, message=words)


def _pool_rows(evidence: Evidence) -> None:
    """Fail rows that are far off if most rows of a name or run are, where routers tie.

    A single row may come from another expert, but not most rows of a name in all layers and steps
    of a prompt, or of a run. If their median is far off, so is each far-off row, even a step's only
    one.
    """
    limits = evidence.limits
    for key in (lambda site: (site.run, site.prompt, site.name), lambda site: site.run):
        groups: dict[object, list[Site]] = {}
        for site, judged in evidence.judged.items():
            if judged.ratios:
                groups.setdefault(key(site), []).append(site)
        for sites in groups.values():
            ratios = [ratio for site in sites for ratio in evidence.judged[site].ratios]
            if len(ratios) < _FEWEST_ROWS or metrics.median(ratios) <= limits.far_med:
                continue
            off = sum(ratio > limits.far_max for ratio in ratios)
            words = f"{off} of {len(ratios)} rows of all layers and steps are far off"
            for site in sites:
                judged = evidence.judged[site]
                if judged.verdict is Verdict.DRIFT and max(judged.ratios) > limits.far_max:
                    evidence.judged[site] = replace(judged, verdict=Verdict.WRONG, message=words)


def distances(
    reference: ReferenceRuns, rows: Mapping[Site, Tensor], limits: Limits
) -> Iterator[tuple[Site, floor.Distance]]:
    """Yield how far a candidate's finite rows (float64 [T, D]) are from the reference, by site."""
    for batch in metrics.batches(rows):
        noise_floors = [reference.floor(site) for site in batch]
        measured = floor.measures([rows[site] for site in batch], noise_floors, limits)
        yield from zip(batch, measured, strict=True)


def _compare_integers(evidence: Evidence, site: Site) -> None:
    """Judge ids of the largest numbers by these, as greedy ids are; others by baseline flips."""
    reference, mine = evidence.reference, evidence.observed[site]
    verdict, words = integers.compare(mine, reference.integers(site), reference.precision)
    weighed = None if verdict is Verdict.EXACT else _weigh_ids(evidence, site)
    if weighed is None:
        evidence.settle(site, verdict, words)
        return
    beside, worst = weighed
    verdict = Verdict.MATCH if worst.benign else Verdict.WRONG
    apart = f"whose {beside.name} is {worst.margin:.3g} apart, noise of the pair {worst.noise:.3g}"
    words += f"; {worst.chosen} stands for {worst.meant}, {apart}"
    evidence.settle(site, verdict, words, margin=worst.margin, noise=worst.noise)


def _weigh_ids(evidence: Evidence, site: Site) -> tuple[Site, rankings.Weighed] | None:
    """Weigh ids by numbers of the same step and prompt; return the numbers' site and the result.

    None if the step's token is judged itself: ids that repeat it must equal it.
    """
    reference, mine = evidence.reference, evidence.observed[site]
    values, baseline = reference.reference_values, reference.baseline_values
    if any(replace(site, name=chosen) in values for chosen in CHOSEN):
        return None
    ids = (values[site], *baseline[site])
    for other, numbers in values.items():
        if not numbers.is_floating_point() or replace(other, name=site.name) != site:
            continue
        found = rankings.numbers_of(mine, ids, (numbers, *baseline[other]))
        if found is None:
            continue
        weighed = rankings.weigh(mine, ids[0], found, evidence.limits, reference.precision)
        if weighed is not None:
            return other, weighed
    return None


def _judge_distance(evidence: Evidence, site: Site, distance: floor.Distance) -> Judged:
    tensor, reference, limits = evidence.observed[site], evidence.reference, evidence.limits
    right = reference.reference_values[site]
    rounded = right.to(getattr(torch, reference.precision.dtype))
    accepted = (right, rounded, *reference.baseline_values[site])
    if any(_same_values(tensor, value) for value in accepted):
        outcome, message = Verdict.EXACT, "bitwise equal to a baseline run"
    elif floor.within(distance, limits):
        outcome, message = Verdict.MATCH, ""
    elif floor.drifts(distance):
        far = f"{distance.q_max:.3g} × noise at most, {distance.q_med:.3g} × for the median token"
        outcome, message = Verdict.DRIFT, f"coarser than baseline runs: {far}"
        if distance.massive_near > 1:
            message = f"massive activations are up to {distance.massive_ulps:.0f} steps off"
    else:
        outcome, message = Verdict.WRONG, _wrong_message(distance, limits)
    extra: dict[str, float] = {}
    if distance.smallest_local is not None:
        extra["smallest_local"] = distance.smallest_local
    if distance.massive:
        extra["massive_ulps"] = distance.massive_ulps
        extra["massive_share"] = max(distance.massive, distance.massive_near)
    if distance.shift:
        extra["shift_share"] = distance.shift
    if not outcome.passes and math.isfinite(distance.largest):
        extra[LARGEST] = distance.largest
    figures = ("q_med", "q_max", "spread", "ratios", "error", "floor")
    return Judged(
        str(site),
        outcome,
        message,
        **{name: getattr(distance, name) for name in figures},
        smallest=distance.smallest if outcome.passes else None,
        shape=tuple(tensor.shape),
        dtype=structure.short(tensor.dtype),
        extra=extra,
    )


def _same_values(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors are equal after widening to a common dtype."""
    if left.dtype != right.dtype:
        left, right = left.to(torch.float64), right.to(torch.float64)
    return torch.equal(left, right)


def _proves_nothing(noise_floor: floor.Floor) -> bool:
    """Return whether float32 baseline runs differ by more than rounding.

    They do in rows of padding or uninitialized memory. One row is enough, but in a mixture, where a
    token may be between two experts, it takes half of them.
    """
    if noise_floor.precision is not Precision.FLOAT32:
        return False
    noise = metrics.ratio(noise_floor.noise, noise_floor.scale).tolist()
    return (metrics.median(noise) if noise_floor.mixture else max(noise)) >= NO_ROUNDING


def _wrong_message(distance: floor.Distance, limits: Limits) -> str:
    if not distance.zero:
        return "not zero where the reference and every baseline run are exactly zero"
    if distance.massive > 1 and distance.q_max <= limits.k_max:
        return f"a massive activation is {distance.massive_ulps:.0f} steps off"
    if distance.shift > 1 and distance.q_max <= limits.k_max:
        return f"shifted as a whole, {distance.shift:.3g} times as far as allowed"
    off = [t for t, ratio in enumerate(distance.ratios) if ratio > limits.k_max]
    total = len(distance.ratios)
    if total == 1 or not off:
        return f"{distance.q_med:.3g} × noise"
    rows = "every token" if len(off) == total else f"tokens {extent.ranges(off)} of {total}"
    return f"{rows} off, by up to {distance.q_max:.3g} × noise"


def _compare_tokens(evidence: Evidence) -> None:
    """Judge chosen ids by the reference's logits in their context; ids drift with their logits."""
    reference = evidence.reference
    choices: list[tuple[str, tokens.TokenChoice]] = []
    for site in evidence.open():
        logits, token = replace(site, name="logits"), evidence.observed[site]
        if logits not in reference.reference_values:
            message = "harness: the reference's logits of this step were not recorded"
            evidence.settle(site, Verdict.UNKNOWN, message)
            continue
        noise_floor = reference.floor(logits)
        own, baseline = noise_floor.reference.flatten(), noise_floor.baseline.flatten(1)
        if token.numel() != 1 or not 0 <= int(token) < own.numel():
            evidence.settle(site, Verdict.WRONG, f"{token.tolist()} is no id of {own.numel()}")
            continue
        choice = tokens.choice(int(token), own, baseline, evidence.limits, reference.precision)
        outcome, message = Verdict.EXACT, ""
        if choice.flipped:
            outcome = Verdict.MATCH if choice.benign else Verdict.WRONG
            message = (
                f"token {choice.chosen} instead of {choice.best}: margin {choice.margin:.3g}, "
                f"noise of the pair {choice.noise:.3g}"
            )
        judged = evidence.judged.get(logits)
        drifting = judged is not None and judged.verdict is Verdict.DRIFT
        follows = drifting and tokens.is_largest(token, evidence.observed[logits])
        if outcome is Verdict.WRONG and follows:
            outcome = Verdict.DRIFT
        else:
            choices.append((str(site), choice))
        named = {name: getattr(choice, name) for name in ("chosen", "best", "margin", "noise")}
        evidence.settle(site, outcome, message, **named)
    followed = tokens.follow_logits(evidence.comparable(), reference.greedy)
    evidence.relations += filter(None, (tokens.flips(choices), followed))


def _explain_drift(evidence: Evidence) -> None:
    """Turn a drift that a known fault explains into `wrong`, however small it is.

    If routers tie, a few rows may come from another expert, and another token's row may look alike:
    the fault must show in half of the rows.
    """
    for site, observation in evidence.judged.items():
        if observation.verdict is not Verdict.DRIFT:
            continue
        off = sum(ratio > evidence.limits.k_max for ratio in observation.ratios)
        if evidence.reference.routers_tie and 0 < 2 * off < len(observation.ratios):
            continue
        if explanations := diagnose.explain_value(evidence, site):
            message = f"holds {explanations[0].words}"
            evidence.judged[site] = replace(observation, verdict=Verdict.WRONG, message=message)


def _find_drawn(evidence: Evidence) -> dict[Site, tuple[Tensor, int]]:
    """Return every drawn id within its step's vocabulary, with the logits it was drawn from.

    They are the reference's if the candidate's have another shape.
    """
    reference, observed = evidence.reference.reference_values, evidence.observed
    drawn = {}
    for site, token in observed.items():
        logits = replace(site, name="logits")
        if site.name != SAMPLED or token.numel() != 1 or logits not in reference:
            continue
        known, own = reference[logits], observed.get(logits)
        if 0 <= int(token) < known.numel():
            same_shape = own is not None and own.shape == known.shape
            drawn[site] = (own if own is not None and same_shape else known, int(token))
    return drawn


def _settle_chosen(evidence: Evidence, drawn_ids: Mapping[Site, tuple[Tensor, int]]) -> None:
    """Accept ids that differ because the reference draws nothing.

    Its ids are the candidate's if it was run along them, else its own likeliest. So another id is
    not wrong, nor is one that correctly repeats a drawn or greedy id. Later ids are not comparable.
    """
    reference, observed = evidence.reference.reference_values, evidence.observed
    for site in evidence.open():
        drawn, greedy = replace(site, name=SAMPLED), replace(site, name=GREEDY)
        chosen = drawn if drawn in drawn_ids else greedy
        if site == greedy or chosen not in reference or chosen not in observed:
            continue
        if reference[site].is_floating_point():
            continue
        same = tokens.same_ids(observed[chosen], reference[chosen])
        repeats = tokens.same_ids(reference[site], reference[chosen])
        if not same and repeats and tokens.same_ids(observed[site], observed[chosen]):
            words = "drawn: judged by how likely it is" if chosen == drawn else "repeats the token"
            evidence.settle(site, Verdict.MATCH, words)


def _compare_edits(evidence: Evidence, *, bitwise: bool) -> None:
    """Measure the effect of the write at every observation that both runs have.

    Bitwise comparison is for float32 only: in bf16 a write rounds what the engine holds in two
    summands, and experts compute the tokens of all requests together. Neither keeps unreached rows
    bitwise equal, even on a `bitwise` reproducible engine.
    """
    reference, limits = evidence.reference, evidence.limits
    floors: dict[Site, reach.Floors] = {}
    for after in sorted(evidence.floors, key=verdict.order):
        clean = replace(after, run="clean")
        if after.run == "edited" and clean in evidence.floors:
            pair = (evidence.floors[clean], evidence.floors[after])
            if pair[0].reference.shape == pair[1].reference.shape:
                floors[after] = pair
    exactly = bitwise and reference.precision is Precision.FLOAT32 and not reference.mixture
    still = reach.unreached(floors) if exactly else {}
    run_pairs = {}
    for site, pair in floors.items():
        clean = replace(site, run="clean")
        rows = (evidence.rows[clean], evidence.rows[site])
        astray = None
        if reference.routers_tie:  # a clean row that is far off may come from another expert
            far = [ratio > limits.k_max for ratio in evidence.judged[clean].ratios]
            astray = torch.tensor(far or [False] * len(rows[0]))
        run_pairs[site] = gain.RunPair(
            *rows, *pair, still=still.get(site), repeats=bitwise, astray=astray
        )
    effects: dict[Site, gain.Effect] = {}
    for batch in metrics.batches({site: evidence.observed[site] for site in run_pairs}):
        changes = gain.changes([run_pairs[site] for site in batch], limits)
        for site, change in zip(batch, changes, strict=True):
            effects[site] = gain.effect(change, limits)
    for site in run_pairs:
        evidence.effects[site] = effects[site]
        evidence.judged[site] = replace(evidence.judged[site], gain=effects[site].gain)

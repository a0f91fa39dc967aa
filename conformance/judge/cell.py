"""Judge one cell: the candidate's observations against the reference and the baseline runs.

Pure: tensors in, a Judgement out. An observation is `exact` if it is bitwise equal to a baseline
run or to the reference rounded alike, and `match` if it is as close as baseline runs are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from conformance.judge import conclude, integers
from conformance.judge import judgement as verdict
from conformance.judge.diagnosis import diagnose, extent
from conformance.judge.evidence import Evidence
from conformance.judge.judgement import Judgement
from conformance.judge.measures import (
    floor,
    gain,
    metrics,
    rankings,
    reach,
    router_ties,
    structure,
    texts,
    tokens,
)
from conformance.judge.measures import relations as rules
from conformance.judge.measures.draws import Draws, likelihood
from conformance.judge.measures.relations import Mismatch, compare_exact
from conformance.judge.reference import BASELINE_RUNS_DIFFER, ReferenceRuns, read_reference
from conformance.records import (
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

__all__ = [
    "Judgement",
    "Mismatch",
    "ReferenceRuns",
    "compare_exact",
    "judge_cell",
    "read_reference",
]
#: Relative float32 noise of a row that rounding cannot explain: a hundred thousand times that of
#: one number. An error of a hundred times the noise passes, and would be as large as the row.
NO_ROUNDING = 1e-2
#: Fewer rows do not show that most of them are off.
_FEWEST_ROWS = 4


def judge_cell(
    candidate: Mapping[str, Tensor],
    reference: ReferenceRuns | Mapping[str, Mapping[str, Tensor]],
    *,
    has_edit: bool,
    equal: Sequence[tuple[str, str]],
    prompt_ids: structure.Ids,
    reference_ids: structure.Ids,
    limits: Limits,
    relations: Sequence[Relation] = (),
    draws: Draws | None = None,
    alone: bool = True,
    explain: bool = True,
    bitwise: bool = False,
    equal_alone: Sequence[tuple[str, str]] = (),
    bitwise_beside: bool = False,
) -> Judgement:
    """Return the verdict on one cell in one precision.

    `reference` maps members to observations: "truth" in float32 and the baseline runs. It may also
    be the result of `read_reference`, so that its noise floors are computed once for all
    candidates. `has_edit`: observations come in pairs of a clean and an edited run. `equal` names
    pairs that must be equal, bitwise on a `bitwise` reproducible engine; on others they may differ
    as two baseline runs do. `prompt_ids` are the candidate's token ids of each prompt,
    `reference_ids` the reference's. `relations` are findings of other columns on the cell, `draws`
    the sampling parameters, if any. If this precision is `alone`, a value that a known fault
    explains is wrong, however small the error. Without `explain` there is no diagnosis.
    `equal_alone` names pairs in which one shared a batch with other requests: they must be bitwise
    equal if the engine is `bitwise_beside` other requests and they are equal in the clean run. On a
    `bitwise` engine, what no write can reach must not change by one bit in float32.
    """
    prepared = (
        reference
        if isinstance(reference, ReferenceRuns)
        else read_reference(reference, has_edit=has_edit)
    )
    if isinstance(prepared, str):
        return verdict.unknown(f"the reference cannot be used: {prepared}")
    if not all(prompt_ids) or not all(reference_ids) or not (prompt_ids and reference_ids):
        return verdict.unknown("the token ids of the prompts were not recorded on both sides")
    observed = {Site.parse(name): tensor for name, tensor in candidate.items()}
    same_ids = structure.prompt_ids(prompt_ids, reference_ids)
    kinds = prepared.other_kinds(observed)
    observed = prepared.numbers(observed)
    evidence = Evidence(prepared, observed, has_edit=has_edit, relations=[same_ids, *relations])
    _compare_structure(evidence, kinds, comparable=same_ids.holds)
    if same_ids.holds:
        drawn_ids = _drawn(evidence) if draws is not None else {}
        _settle_chosen(evidence, drawn_ids)
        _compare_values(
            evidence, limits, () if draws is not None else _chosen(evidence), alone=alone
        )
        _compare_tokens(evidence, limits)
        _compare_draws(evidence, drawn_ids, draws)
        if has_edit:
            _compare_edits(evidence, limits, bitwise=bitwise)
        if alone:
            _explain_drift(evidence, limits)
        alike = partial(_alike, evidence, limits, bitwise=bitwise)
        evidence.relations += [
            rules.equal_within(observed, prepared.reference_values, pair, alike) for pair in equal
        ]

        def alike_beside(left: Site, right: Site) -> bool:
            kept = bitwise_beside and _kept_beside(evidence, left, right)
            return _alike(evidence, limits, left, right, bitwise=kept)

        evidence.relations += [
            rules.equal_within(observed, prepared.reference_values, pair, alike_beside)
            for pair in equal_alone
        ]
    return conclude.conclude(evidence, limits, explain=explain)


def _routers_tie(reference: ReferenceRuns) -> bool:
    """Return whether router ties matter: in a mixture in bf16.

    There the clean and the edited run may differ by an expert where nothing was written, which
    makes gains useless. Float32 has judged them.
    """
    return reference.mixture and reference.precision is Precision.BF16


def _alike(evidence: Evidence, limits: Limits, left: Site, right: Site, *, bitwise: bool) -> bool:
    """Return whether two values differ by no more than rounding.

    On a `bitwise` engine they must be equal, except in a mixture: experts process the tokens of all
    requests together, so a neighbour's routing changes how many rows they add up.
    """
    one, other = evidence.observed[left], evidence.observed[right]
    if (bitwise and not evidence.reference.mixture) or one.shape != other.shape:
        return False
    if right not in evidence.floors:  # no number can be read from it
        return False
    noise_floor = evidence.floors[right]
    off = metrics.norm(metrics.rows(one) - metrics.rows(other), noise_floor.bulk)
    may = router_ties.following(right, len(off), evidence.reference.ties)
    return bool((may | (off <= limits.far_max * noise_floor.noise)).all())


def _kept_beside(evidence: Evidence, left: Site, right: Site) -> bool:
    """Return whether both sites are bitwise equal in the clean run; True without a clean run.

    The number of rows in a batch may select another kernel for a product.
    """
    clean = [evidence.observed.get(replace(site, run="clean")) for site in (left, right)]
    if left.run not in ("clean", "edited") or clean[0] is None or clean[1] is None:
        return True
    return torch.equal(clean[0], clean[1])


def _compare_structure(evidence: Evidence, kinds: Mapping[Site, str], *, comparable: bool) -> None:
    """Settle what needs no distances. `kinds`: entries that are a number on one side only."""
    reference, observed = evidence.reference.reference_values, evidence.observed
    agreed = tokens.agreed_steps(observed, reference)
    for site in sorted(reference.keys() | observed.keys(), key=verdict.order):
        if site not in observed:
            evidence.settle(site, Verdict.MISSING, "was not observed")
            continue
        tensor = observed[site]
        if site not in reference:
            evidence.settle(site, Verdict.STRUCTURE, "the reference has no such observation")
        elif texts.is_text(tensor) and texts.is_text(reference[site]):
            flaw = texts.differ(tensor, reference[site])
            evidence.settle(site, Verdict.WRONG if flaw else Verdict.EXACT, flaw)
        elif flaw := structure.shape(tensor, reference[site]):
            evidence.settle(site, Verdict.STRUCTURE, flaw)
        elif flaw := structure.dtype(
            tensor, evidence.reference.baseline_values[site], site, evidence.reference.precision
        ):
            evidence.settle(site, Verdict.DTYPE, flaw)
        elif numberless := _numberless(evidence, site, kinds):
            evidence.settle(site, *numberless)
        elif not comparable:
            evidence.settle(site, Verdict.UNKNOWN, "not compared: the prompts differ")
        elif site.step > agreed[site.run, site.prompt]:
            step = agreed[site.run, site.prompt]
            flaw = f"harness: the reference was not run along the candidate's token of step {step}"
            evidence.settle(site, Verdict.UNKNOWN, f"{flaw}, so later steps cannot be compared")


def _numberless(
    evidence: Evidence, site: Site, kinds: Mapping[Site, str]
) -> tuple[Verdict, str] | None:
    """Return the verdict if nan or infinities decide it."""
    if site in evidence.reference.unclear:
        return Verdict.UNKNOWN, evidence.reference.unclear[site]
    flaw = kinds.get(site) or structure.finite(evidence.observed[site])
    return (Verdict.NONFINITE, flaw) if flaw else None


def _chosen(evidence: Evidence) -> set[Site]:
    """Return sampled ids that the reference chose as the largest of its logits."""
    reference = evidence.reference.reference_values
    return {
        site
        for site in evidence.open()
        if site.name == SAMPLED
        and (logits := replace(site, name="logits")) in reference
        and tokens.is_largest(reference[site], reference[logits])
    }


def _compare_values(
    evidence: Evidence, limits: Limits, chosen: Collection[Site], *, alone: bool
) -> None:
    """Compare all open float tensors; ids are left to `_compare_tokens` if greedy or `chosen`."""
    open_sites = [site for site in evidence.open() if site.name != GREEDY and site not in chosen]
    for site in open_sites:
        reference = evidence.reference.reference_values[site]
        if not reference.is_floating_point():
            _compare_integers(evidence, site, limits)
            continue
        evidence.rows[site] = metrics.rows(evidence.observed[site])
    evidence.reference.prepare(evidence.rows)
    evidence.floors.update((site, evidence.reference.floor(site)) for site in evidence.rows)
    for site, message in rules.aliased(evidence.observed, evidence.floors).items():
        evidence.settle(site, Verdict.ALIASED, message)
    remaining = {site: rows for site, rows in evidence.rows.items() if site not in evidence.judged}
    for site, distance in distances(evidence.reference, remaining, limits):
        tensor = evidence.observed[site]
        exact = _is_baseline_value(tensor, evidence.reference, site)
        judged = _measured(tensor, site, distance, exact, limits)
        if judged.verdict is Verdict.MATCH and _proves_nothing(evidence.floors[site]):
            evidence.settle(site, Verdict.UNKNOWN, BASELINE_RUNS_DIFFER)
            continue
        evidence.judged[site] = judged
    if _routers_tie(evidence.reference):
        _pool_rows(evidence, limits)
    if evidence.reference.precision is Precision.BF16:
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


def _pool_rows(evidence: Evidence, limits: Limits) -> None:
    """Fail rows that are far off if most rows of a name or run are, where routers tie.

    A single row may come from another expert, but not most rows of a name in all layers and steps
    of a prompt, or of a run. If their median is far off, so is each far-off row, even a step's only
    one.
    """
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


def _compare_integers(evidence: Evidence, site: Site, limits: Limits) -> None:
    """Judge ids of the largest numbers by these, as greedy ids are; others by baseline flips."""
    reference, mine = evidence.reference, evidence.observed[site]
    verdict, words = integers.compare(mine, reference.integers(site), reference.precision)
    weighed = None if verdict is Verdict.EXACT else _weighed(evidence, site, limits)
    if weighed is None:
        evidence.settle(site, verdict, words)
        return
    beside, worst = weighed
    margin = f"whose {beside.name} is {worst.margin:.3g} apart"
    apart = f"{worst.chosen} stands for {worst.meant}, {margin}"
    evidence.settle(
        site,
        Verdict.MATCH if worst.benign else Verdict.WRONG,
        f"{words}; {apart}, noise of the pair {worst.noise:.3g}",
        margin=worst.margin,
        noise=worst.noise,
    )


def _weighed(
    evidence: Evidence, site: Site, limits: Limits
) -> tuple[Site, rankings.Weighed] | None:
    """Weigh ids by numbers of the same step and prompt; return the numbers' site and the result.

    None if the step's token is judged itself: ids that repeat it must equal it.
    """
    reference, mine = evidence.reference, evidence.observed[site]
    if any(replace(site, name=chosen) in reference.reference_values for chosen in CHOSEN):
        return None
    ids = (reference.reference_values[site], *reference.baseline_values[site])
    for other, numbers in reference.reference_values.items():
        if not numbers.is_floating_point() or replace(other, name=site.name) != site:
            continue
        found = rankings.numbers_of(mine, ids, (numbers, *reference.baseline_values[other]))
        if found is None:
            continue
        weighed = rankings.weigh(mine, ids[0], found, limits, reference.precision)
        if weighed is not None:
            return other, weighed
    return None


def _is_baseline_value(tensor: Tensor, reference: ReferenceRuns, site: Site) -> bool:
    """Return whether a tensor is bitwise a baseline run, the reference, or its rounding."""
    reference_values = reference.reference_values[site]
    rounded = reference_values.to(getattr(torch, reference.precision.dtype))
    accepted = (reference_values, rounded, *reference.baseline_values[site])
    return any(_same_values(tensor, value) for value in accepted)


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


def _measured(
    tensor: Tensor, site: Site, distance: floor.Distance, exact: bool, limits: Limits
) -> Judged:
    if exact:
        outcome, message = Verdict.EXACT, "bitwise equal to a baseline run"
    elif floor.within(distance, limits):
        outcome, message = Verdict.MATCH, ""
    elif floor.drifts(distance):
        outcome, message = Verdict.DRIFT, _drift_message(distance)
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
    return Judged(
        site=str(site),
        verdict=outcome,
        message=message,
        q_med=distance.q_med,
        q_max=distance.q_max,
        spread=distance.spread,
        ratios=distance.ratios,
        error=distance.error,
        floor=distance.floor,
        smallest=distance.smallest if outcome.passes else None,
        shape=tuple(tensor.shape),
        dtype=structure.short(tensor.dtype),
        extra=extra,
    )


def _drift_message(distance: floor.Distance) -> str:
    if distance.massive_near > 1:
        return f"massive activations are up to {distance.massive_ulps:.0f} steps off"
    most = f"{distance.q_max:.3g} × noise at most, {distance.q_med:.3g} × for the median token"
    return f"coarser than baseline runs: {most}"


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
    return f"{extent.rows(off, total)} off, by up to {distance.q_max:.3g} × noise"


def _compare_tokens(evidence: Evidence, limits: Limits) -> None:
    """Judge chosen ids by the reference's logits in their context; ids drift with their logits."""
    choices: list[tuple[str, tokens.TokenChoice]] = []
    for site in evidence.open():
        logits = replace(site, name="logits")
        token = evidence.observed[site]
        if logits not in evidence.reference.reference_values:
            message = "harness: the reference's logits of this step were not recorded"
            evidence.settle(site, Verdict.UNKNOWN, message)
            continue
        noise_floor = evidence.reference.floor(logits)
        size = noise_floor.reference.numel()
        if token.numel() != 1 or not 0 <= int(token) < size:
            evidence.settle(site, Verdict.WRONG, f"{token.tolist()} is no id of {size}")
            continue
        choice = tokens.choice(
            int(token),
            noise_floor.reference.flatten(),
            noise_floor.baseline.flatten(1),
            limits,
            evidence.reference.precision,
        )
        outcome, message = _token_outcome(choice)
        if outcome is Verdict.WRONG and _follows_from_drift(evidence, site):
            outcome = Verdict.DRIFT
        else:
            choices.append((str(site), choice))
        evidence.settle(
            site,
            outcome,
            message,
            chosen=choice.chosen,
            best=choice.best,
            margin=choice.margin,
            noise=choice.noise,
        )
    for relation in (
        tokens.flips(choices),
        tokens.follow_logits(evidence.comparable(), evidence.reference.greedy),
    ):
        if relation is not None:
            evidence.relations.append(relation)


def _follows_from_drift(evidence: Evidence, site: Site) -> bool:
    """Return whether an id is the largest of its step's logits and these drift."""
    logits = replace(site, name="logits")
    judged = evidence.judged.get(logits)
    if judged is None or judged.verdict is not Verdict.DRIFT:
        return False
    return tokens.is_largest(evidence.observed[site], evidence.observed[logits])


def _token_outcome(choice: tokens.TokenChoice) -> tuple[Verdict, str]:
    if not choice.flipped:
        return Verdict.EXACT, ""
    message = (
        f"token {choice.chosen} instead of {choice.best}: margin {choice.margin:.3g}, "
        f"noise of the pair {choice.noise:.3g}"
    )
    return (Verdict.MATCH if choice.benign else Verdict.WRONG), message


def _explain_drift(evidence: Evidence, limits: Limits) -> None:
    """Turn a drift that a known fault explains into `wrong`, however small it is.

    If routers tie, a few rows may come from another expert, and another token's row may look alike:
    the fault must show in half of the rows.
    """
    for site, observation in evidence.judged.items():
        if observation.verdict is not Verdict.DRIFT:
            continue
        off = sum(ratio > limits.k_max for ratio in observation.ratios)
        if _routers_tie(evidence.reference) and 0 < 2 * off < len(observation.ratios):
            continue
        explanations = diagnose.explain_value(evidence, site, limits)
        if explanations:
            message = f"holds {explanations[0].words}"
            evidence.judged[site] = replace(observation, verdict=Verdict.WRONG, message=message)


def _of_shape(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Return the tensor if it has the other's shape, else the other."""
    return tensor if tensor is not None and tensor.shape == other.shape else other


def _drawn(evidence: Evidence) -> dict[Site, tuple[Tensor, int]]:
    """Return every drawn id within its step's vocabulary, with the logits it was drawn from."""
    reference, observed = evidence.reference.reference_values, evidence.observed
    return {
        site: (_of_shape(observed.get(logits), reference[logits]), int(observed[site]))
        for site in observed
        if site.name == SAMPLED
        and observed[site].numel() == 1
        and (logits := replace(site, name="logits")) in reference
        and 0 <= int(observed[site]) < reference[logits].numel()
    }


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
        if _same_integers(observed[chosen], reference[chosen]):
            continue
        if _same_integers(reference[site], reference[chosen]) and _same_integers(
            observed[site], observed[chosen]
        ):
            words = "drawn: judged by how likely it is" if chosen == drawn else "repeats the token"
            evidence.settle(site, Verdict.MATCH, words)


def _same_integers(left: Tensor, right: Tensor) -> bool:
    if left.is_floating_point() or right.is_floating_point():
        return False
    return left.shape == right.shape and bool((left == right).all())


def _compare_draws(
    evidence: Evidence, drawn_ids: Mapping[Site, tuple[Tensor, int]], draws: Draws | None
) -> None:
    """Check that the drawn ids are plausible draws from their step's logits."""
    relation = likelihood(list(drawn_ids.values()), draws) if draws is not None else None
    if relation is not None:
        evidence.relations.append(relation)


def _compare_edits(evidence: Evidence, limits: Limits, *, bitwise: bool) -> None:
    """Measure the effect of the write at every observation that both runs have.

    Bitwise comparison is for float32 only: in bf16 a write rounds what the engine holds in two
    summands, and experts compute the tokens of all requests together. Neither keeps unreached rows
    bitwise equal, even on a `bitwise` reproducible engine.
    """
    reference = evidence.reference
    exactly = bitwise and reference.precision is Precision.FLOAT32 and not reference.mixture
    floors: dict[Site, reach.Floors] = {}
    for after in sorted(evidence.floors, key=verdict.order):
        clean = replace(after, run="clean")
        if after.run == "edited" and clean in evidence.floors:
            pair = (evidence.floors[clean], evidence.floors[after])
            if pair[0].reference.shape == pair[1].reference.shape:
                floors[after] = pair
    still = reach.unreached(floors) if exactly else {}
    run_pairs = {
        site: gain.RunPair(
            evidence.rows[replace(site, run="clean")],
            evidence.rows[site],
            *pair,
            still=still.get(site),
            repeats=bitwise,
        )
        for site, pair in floors.items()
    }
    change_at: dict[Site, gain.ObservedChange] = {}
    for batch in metrics.batches({site: evidence.observed[site] for site in run_pairs}):
        changes = gain.changes([run_pairs[site] for site in batch], limits)
        change_at.update(zip(batch, changes, strict=True))
    for site, change in ((site, change_at[site]) for site in run_pairs):
        effect = gain.effect(change, limits)
        evidence.effects[site] = effect
        evidence.judged[site] = replace(evidence.judged[site], gain=effect.gain)

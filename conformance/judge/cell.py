"""Judge one cell: the candidate's observations against the truth and the honest runs.

Pure: tensors in, a Judgement out. An observation passes as `exact` when it is bitwise
one of the honest runs or the truth rounded as they are; as `match` when it is no
further from the truth than honest runs are.
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
from conformance.judge.reference import HONEST_RUNS_DIFFER, Reference, read_reference
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
    "Reference",
    "compare_exact",
    "judge_cell",
    "read_reference",
]
#: Of a row, in float32, what no rounding amounts to: a hundred thousand times that of one number.
#: An error of a hundred times the noise passes, which is then as large as the row.
NO_ROUNDING = 1e-2
#: Of fewer rows it is not said that most of them are off.
_FEWEST_ROWS = 4


def judge_cell(
    candidate: Mapping[str, Tensor],
    reference: Reference | Mapping[str, Mapping[str, Tensor]],
    *,
    twin: bool,
    equal: Sequence[tuple[str, str]],
    prompt_ids: structure.Ids,
    truth_ids: structure.Ids,
    limits: Limits,
    relations: Sequence[Relation] = (),
    draws: Draws | None = None,
    alone: bool = True,
    explain: bool = True,
    bitwise: bool = False,
    equal_alone: Sequence[tuple[str, str]] = (),
    bitwise_beside: bool = False,
) -> Judgement:
    """The verdict on one cell in one precision.

    `reference` maps a member to its observations: "truth" in float32 and honest runs; or it is
    what `read_reference` made of that, whose noise floors are then computed once for all
    candidates. `twin` says that the observations come in pairs of a clean and an edited run;
    `equal` names pairs that must be equal: bitwise on an engine that is `bitwise`. `prompt_ids` are
    the candidate's token ids of each prompt, `truth_ids` the truth's. `relations` are what other
    columns show of the cell, `draws` how ids were drawn where they were. Where this precision is
    `alone`, what a known fault explains is wrong however small it is. Without `explain` there is no
    diagnosis.
    `equal_alone` names pairs of which one was observed beside other requests than the other: they
    must be bitwise equal on an engine that is `bitwise_beside` them the same, where they are in
    the clean run.
    On an engine that is `bitwise` the same from run to run, what no write can reach must not
    change by one bit in float32; on another, equal pairs may differ as two honest runs do.
    """
    prepared = (
        reference if isinstance(reference, Reference) else read_reference(reference, twin=twin)
    )
    if isinstance(prepared, str):
        return verdict.unknown(f"the reference cannot be used: {prepared}")
    if not all(prompt_ids) or not all(truth_ids) or not (prompt_ids and truth_ids):
        return verdict.unknown("the token ids of the prompts were not recorded on both sides")
    observed = {Site.parse(name): tensor for name, tensor in candidate.items()}
    same_ids = structure.prompt_ids(prompt_ids, truth_ids)
    kinds = prepared.other_kinds(observed)
    observed = prepared.numbers(observed)
    evidence = Evidence(prepared, observed, twin=twin, relations=[same_ids, *relations])
    _compare_structure(evidence, kinds, comparable=same_ids.holds)
    if same_ids.holds:
        drawn_ids = _drawn(evidence) if draws is not None else {}
        _settle_chosen(evidence, drawn_ids)
        _compare_values(
            evidence, limits, () if draws is not None else _chosen(evidence), alone=alone
        )
        _compare_tokens(evidence, limits)
        _compare_draws(evidence, drawn_ids, draws)
        if twin:
            _compare_edits(evidence, limits, bitwise=bitwise)
        if alone:
            _explain_drift(evidence, limits)
        alike = partial(_alike, evidence, limits, bitwise=bitwise)
        evidence.relations += [
            rules.equal_within(observed, prepared.truth, pair, alike) for pair in equal
        ]

        def alike_beside(left: Site, right: Site) -> bool:
            kept = bitwise_beside and _kept_beside(evidence, left, right)
            return _alike(evidence, limits, left, right, bitwise=kept)

        evidence.relations += [
            rules.equal_within(observed, prepared.truth, pair, alike_beside) for pair in equal_alone
        ]
    return conclude.conclude(evidence, limits, explain=explain)


def _routers_tie(reference: Reference) -> bool:
    """In bf16 routers have near-ties: the clean and the edited run may differ by an expert where
    nothing was written, which no gain survives. Float32 has judged it.
    """
    return reference.mixture and reference.precision is Precision.BF16


def _alike(evidence: Evidence, limits: Limits, left: Site, right: Site, *, bitwise: bool) -> bool:
    """May two values differ by rounding? Not on an engine that is `bitwise`, but in a mixture: its
    experts compute the tokens of all requests together, so that a neighbour's choices change how
    many rows they add up.
    """
    one, other = evidence.observed[left], evidence.observed[right]
    if (bitwise and not evidence.reference.mixture) or one.shape != other.shape:
        return False
    if right not in evidence.floors:  # no number can be read from it
        return False
    honest = evidence.floors[right]
    off = metrics.norm(metrics.rows(one) - metrics.rows(other), honest.bulk)
    may = router_ties.following(right, len(off), evidence.reference.ties)
    return bool((may | (off <= limits.far_max * honest.noise)).all())


def _kept_beside(evidence: Evidence, left: Site, right: Site) -> bool:
    """Are the bits of this very batch those of its requests alone, where nobody edits? Which kernel
    computes a product may follow from the number of its rows.
    """
    clean = [evidence.observed.get(replace(site, run="clean")) for site in (left, right)]
    if left.run not in ("clean", "edited") or clean[0] is None or clean[1] is None:
        return True
    return torch.equal(clean[0], clean[1])


def _compare_structure(evidence: Evidence, kinds: Mapping[Site, str], *, comparable: bool) -> None:
    """Settle what needs no numbers; what passes is left for the distances. `kinds`: where entries
    are no numbers on one side alone.
    """
    truth, observed = evidence.reference.truth, evidence.observed
    agreed = tokens.agreed_steps(observed, truth)
    for site in sorted(truth.keys() | observed.keys(), key=verdict.order):
        if site not in observed:
            evidence.settle(site, Verdict.MISSING, "was not observed")
            continue
        tensor = observed[site]
        if site not in truth:
            evidence.settle(site, Verdict.STRUCTURE, "the reference has no such observation")
        elif texts.is_text(tensor) and texts.is_text(truth[site]):
            flaw = texts.differ(tensor, truth[site])
            evidence.settle(site, Verdict.WRONG if flaw else Verdict.EXACT, flaw)
        elif flaw := structure.shape(tensor, truth[site]):
            evidence.settle(site, Verdict.STRUCTURE, flaw)
        elif flaw := structure.dtype(
            tensor, evidence.reference.honest[site], site, evidence.reference.precision
        ):
            evidence.settle(site, Verdict.DTYPE, flaw)
        elif numberless := _numberless(evidence, site, kinds):
            evidence.settle(site, *numberless)
        elif not comparable:
            evidence.settle(site, Verdict.UNKNOWN, "not compared: the prompts differ")
        elif site.step > agreed[site.run, site.prompt]:
            step = agreed[site.run, site.prompt]
            flaw = f"harness: the truth was not run along the candidate's token of step {step}"
            evidence.settle(site, Verdict.UNKNOWN, f"{flaw}, so later steps cannot be compared")


def _numberless(
    evidence: Evidence, site: Site, kinds: Mapping[Site, str]
) -> tuple[Verdict, str] | None:
    """The verdict where nan and infinities decide it."""
    if site in evidence.reference.unclear:
        return Verdict.UNKNOWN, evidence.reference.unclear[site]
    flaw = kinds.get(site) or structure.finite(evidence.observed[site])
    return (Verdict.NONFINITE, flaw) if flaw else None


def _chosen(evidence: Evidence) -> set[Site]:
    """Ids that could have been laid down, and that the truth chose: by the same rule as it."""
    truth = evidence.reference.truth
    return {
        site
        for site in evidence.open()
        if site.name == SAMPLED
        and (logits := replace(site, name="logits")) in truth
        and tokens.is_largest(truth[site], truth[logits])
    }


def _compare_values(
    evidence: Evidence, limits: Limits, chosen: Collection[Site], *, alone: bool
) -> None:
    """The distance of every remaining tensor of numbers from the truth; greedy ids, and those that
    were `chosen` like them, are left for their margins.
    """
    open_sites = [site for site in evidence.open() if site.name != GREEDY and site not in chosen]
    for site in open_sites:
        truth = evidence.reference.truth[site]
        if not truth.is_floating_point():
            _compare_integers(evidence, site, limits)
            continue
        evidence.rows[site] = metrics.rows(evidence.observed[site])
    evidence.reference.prepare(evidence.rows)
    evidence.floors.update((site, evidence.reference.floor(site)) for site in evidence.rows)
    tied = _without_ties(evidence, limits)
    for site, message in rules.aliased(evidence.observed, evidence.floors).items():
        evidence.settle(site, Verdict.ALIASED, message)
    remaining = {site: rows for site, rows in evidence.rows.items() if site not in evidence.judged}
    for site, distance in distances(evidence.reference, remaining, limits):
        tensor = evidence.observed[site]
        exact = _is_honest(tensor, evidence.reference, site)
        judged = _measured(tensor, site, distance, exact, limits)
        if judged.verdict is Verdict.MATCH and _proves_nothing(evidence.floors[site]):
            evidence.settle(site, Verdict.UNKNOWN, HONEST_RUNS_DIFFER)
            continue
        if site in tied and judged.verdict.passes:
            judged = replace(judged, verdict=Verdict.DRIFT, message=tied[site])
        evidence.judged[site] = judged
    if _routers_tie(evidence.reference):
        _pool_rows(evidence, limits)
    if evidence.reference.precision is Precision.BF16:
        _settle_untold(evidence, alone=alone)


def _settle_untold(evidence: Evidence, *, alone: bool) -> None:
    """Settle what is off in a later step where no token ids are kept. In bf16 the engine may have
    gone on with other tokens, which rounding chose. Float32 tells, where it does not do so; where
    bf16 is `alone`, nobody can.
    """
    truth = evidence.reference.truth
    told = {(site.run, site.prompt) for site in truth if site.name in CHOSEN}
    for site, judged in evidence.judged.items():
        if site.step and (site.run, site.prompt) not in told and judged.verdict is Verdict.WRONG:
            verdict = Verdict.UNKNOWN if alone else Verdict.DRIFT
            words = (
                "the scenario keeps no token ids, so that other tokens explain it: return "
                '"tokens" of each step'
            )
            evidence.judged[site] = replace(judged, verdict=verdict, message=words)


def _pool_rows(evidence: Evidence, limits: Limits) -> None:
    """Where routers tie, any one row may be another expert's, but not most of the rows that a name
    has in all layers and steps of a prompt, or of a run. Where the median of these is far off, each
    that is far off is wrong: also the only row of a step.
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


def _without_ties(evidence: Evidence, limits: Limits) -> dict[Site, str]:
    """Put the truth's row in the place of each that is off and follows from a token whose experts
    are a matter of rounding: of another expert's row nothing can be said. Returns what is said of
    the observations that have one.
    """
    words: dict[Site, str] = {}
    for site, rows in evidence.rows.items() if evidence.reference.ties else ():
        honest = evidence.floors[site]
        may = router_ties.following(site, len(rows), evidence.reference.ties)
        distance = metrics.norm(honest.view(rows) - honest.truth, honest.bulk)
        excused = may & (distance > limits.k_max * honest.noise)
        if not bool(excused.any()):
            continue
        truth = metrics.rows(evidence.reference.truth[site])
        evidence.rows[site] = torch.where(excused[:, None], truth, rows)
        evidence.excused[site] = excused
        which = extent.rows(excused.nonzero().flatten().tolist(), len(rows))
        words[site] = f"{which} off: a router has two experts within a rounding there, or before"
    return words


def distances(
    reference: Reference, rows: Mapping[Site, Tensor], limits: Limits
) -> Iterator[tuple[Site, floor.Distance]]:
    """How far a candidate's rows (float64 [T, D], finite) are from the truth, by site."""
    for batch in metrics.batches(rows):
        honest = [reference.floor(site) for site in batch]
        measured = floor.measures([rows[site] for site in batch], honest, limits)
        yield from zip(batch, measured, strict=True)


def _compare_integers(evidence: Evidence, site: Site, limits: Limits) -> None:
    """Integers that a trace makes of numbers: by the numbers beside them, where they are the ids of
    the largest, as greedy ids are; else by how many differ in honest runs.
    """
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
    """Ids by the numbers beside them, in the same step of the same prompt, and which these are;
    None in a step whose token is judged itself: what repeats that has to be it.
    """
    reference, mine = evidence.reference, evidence.observed[site]
    if any(replace(site, name=chosen) in reference.truth for chosen in CHOSEN):
        return None
    ids = (reference.truth[site], *reference.honest[site])
    for other, numbers in reference.truth.items():
        if not numbers.is_floating_point() or replace(other, name=site.name) != site:
            continue
        found = rankings.numbers_of(mine, ids, (numbers, *reference.honest[other]))
        if found is None:
            continue
        weighed = rankings.weigh(mine, ids[0], found, limits, reference.precision)
        if weighed is not None:
            return other, weighed
    return None


def _is_honest(tensor: Tensor, reference: Reference, site: Site) -> bool:
    """Bitwise one of the honest runs, or the truth itself, or rounded as they are?"""
    truth = reference.truth[site]
    rounded = truth.to(getattr(torch, reference.precision.dtype))
    accepted = (truth, rounded, *reference.honest[site])
    return any(_same_values(tensor, honest) for honest in accepted)


def _same_values(left: Tensor, right: Tensor) -> bool:
    """Equal, also where one of the two is stored in a wider dtype."""
    if left.dtype != right.dtype:
        left, right = left.to(torch.float64), right.to(torch.float64)
    return torch.equal(left, right)


def _proves_nothing(honest: floor.Floor) -> bool:
    """Do honest runs in float32 hold other numbers there and not other roundings? Rows of padding
    do, and memory that was never written. At one row already, but in a mixture, where a token may
    be between two experts: there at half of them.
    """
    if honest.precision is not Precision.FLOAT32:
        return False
    noise = metrics.ratio(honest.noise, honest.scale).tolist()
    return (metrics.median(noise) if honest.mixture else max(noise)) >= NO_ROUNDING


def _measured(
    tensor: Tensor, site: Site, distance: floor.Distance, exact: bool, limits: Limits
) -> Judged:
    if exact:
        outcome, message = Verdict.EXACT, "bitwise equal to an honest run"
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
    return f"coarser than honest runs: {most}"


def _wrong_message(distance: floor.Distance, limits: Limits) -> str:
    if not distance.zero:
        return "not zero where the truth and every honest run are exactly zero"
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
    """Every chosen id against the truth's logits of its own context. One that follows from logits
    that drift drifts as they do, and is no flip that margins had to predict.
    """
    choices: list[tuple[str, tokens.Choice]] = []
    for site in evidence.open():
        logits = replace(site, name="logits")
        token = evidence.observed[site]
        if logits not in evidence.reference.truth:
            message = "harness: the truth's logits of this step were not recorded"
            evidence.settle(site, Verdict.UNKNOWN, message)
            continue
        honest = evidence.reference.floor(logits)
        size = honest.truth.numel()
        if token.numel() != 1 or not 0 <= int(token) < size:
            evidence.settle(site, Verdict.WRONG, f"{token.tolist()} is no id of {size}")
            continue
        choice = tokens.choice(
            int(token),
            honest.truth.flatten(),
            honest.members.flatten(1),
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
    """Is an id the largest of its own step's logits, and do these drift?"""
    logits = replace(site, name="logits")
    judged = evidence.judged.get(logits)
    if judged is None or judged.verdict is not Verdict.DRIFT:
        return False
    return tokens.is_largest(evidence.observed[site], evidence.observed[logits])


def _token_outcome(choice: tokens.Choice) -> tuple[Verdict, str]:
    if not choice.flipped:
        return Verdict.EXACT, ""
    message = (
        f"token {choice.chosen} instead of {choice.best}: margin {choice.margin:.3g}, "
        f"noise of the pair {choice.noise:.3g}"
    )
    return (Verdict.MATCH if choice.benign else Verdict.WRONG), message


def _explain_drift(evidence: Evidence, limits: Limits) -> None:
    """What a known fault explains is no drift, however small it is. Where routers tie, a few rows
    may honestly be those of another expert, which another token's row may be as well: there the
    fault has to show in half of the rows.
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
    """The tensor where it has the other's shape, else the other."""
    return tensor if tensor is not None and tensor.shape == other.shape else other


def _drawn(evidence: Evidence) -> dict[Site, tuple[Tensor, int]]:
    """Every drawn id that is one of its step's vocabulary, with the logits that it was drawn by."""
    truth, observed = evidence.reference.truth, evidence.observed
    return {
        site: (_of_shape(observed.get(logits), truth[logits]), int(observed[site]))
        for site in observed
        if site.name == SAMPLED
        and observed[site].numel() == 1
        and (logits := replace(site, name="logits")) in truth
        and 0 <= int(observed[site]) < truth[logits].numel()
    }


def _settle_chosen(evidence: Evidence, drawn_ids: Mapping[Site, tuple[Tensor, int]]) -> None:
    """The truth draws nothing: its ids are the candidate's where it was run along them, and its
    own likeliest elsewhere. So another id is not wrong, nor is what must repeat a drawn or a greedy
    id and does; what came after it cannot be compared.
    """
    truth, observed = evidence.reference.truth, evidence.observed
    for site in evidence.open():
        drawn, greedy = replace(site, name=SAMPLED), replace(site, name=GREEDY)
        chosen = drawn if drawn in drawn_ids else greedy
        if site == greedy or chosen not in truth or chosen not in observed:
            continue
        if _same_integers(observed[chosen], truth[chosen]):
            continue
        if _same_integers(truth[site], truth[chosen]) and _same_integers(
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
    """Are the ids that were drawn as likely as draws of their step's logits?"""
    relation = likelihood(list(drawn_ids.values()), draws) if draws is not None else None
    if relation is not None:
        evidence.relations.append(relation)


def _excused(evidence: Evidence, site: Site) -> Tensor | None:
    """The rows of which either run is excused: the truth's stands there, which proves nothing."""
    masks = [evidence.excused.get(each) for each in (site, replace(site, run="clean"))]
    known = [mask for mask in masks if mask is not None]
    return torch.stack(known).any(dim=0) if known else None


def _compare_edits(evidence: Evidence, limits: Limits, *, bitwise: bool) -> None:
    """The effect of the write at every observation that both runs have.

    In bf16 a write rounds what the engine held in two summands, and experts compute the tokens of
    all requests together: neither keeps rows to the bit that nothing reached, on an engine that
    is `bitwise` the same from run to run either.
    """
    reference = evidence.reference
    exactly = bitwise and reference.precision is Precision.FLOAT32 and not reference.mixture
    floors: dict[Site, reach.Floors] = {}
    for after in sorted(evidence.floors, key=verdict.order):
        clean = replace(after, run="clean")
        if after.run == "edited" and clean in evidence.floors:
            pair = (evidence.floors[clean], evidence.floors[after])
            if pair[0].truth.shape == pair[1].truth.shape:
                floors[after] = pair
    still = reach.unreached(floors) if exactly else {}
    twins = {
        site: gain.Twin(
            evidence.rows[replace(site, run="clean")],
            evidence.rows[site],
            *pair,
            still=still.get(site),
            repeats=bitwise,
            excused=_excused(evidence, site),
        )
        for site, pair in floors.items()
    }
    change_at: dict[Site, gain.Change] = {}
    for batch in metrics.batches({site: evidence.observed[site] for site in twins}):
        changes = gain.changes([twins[site] for site in batch], limits)
        change_at.update(zip(batch, changes, strict=True))
    for site, change in ((site, change_at[site]) for site in twins):
        effect = gain.effect(change, limits)
        evidence.effects[site] = effect
        evidence.judged[site] = replace(evidence.judged[site], gain=effect.gain)

"""Every verdict, on a toy network with several baseline runs, with faults put in."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.measures import metrics
from conformance.spec.records import BF16_LIMITS, Precision, Site, Verdict, to_json
from tests.judge.cell import toy

BF16 = torch.bfloat16
AT = 1


@cache
def plain() -> dict[str, toy.Observations]:
    return toy.reference(toy.observe)


def reading() -> toy.Observations:
    return toy.observe(BF16, toy.CANDIDATE)


@cache
def steered(dose: float, last: bool = False) -> dict[str, toy.Observations]:
    write = {AT: toy.add(toy.vector(dose), rows(last))}
    return toy.reference(lambda dtype, parts: toy.edited(dtype, parts, write))


def rows(last: bool) -> slice:
    return slice(-1, None) if last else slice(None)


def steering(write: toy.Edit, at: int = AT) -> toy.Observations:
    return toy.edited(BF16, toy.CANDIDATE, {at: write})


def test_a_baseline_run_of_another_kind_matches_and_says_what_it_would_have_found() -> None:
    found = toy.judge(reading(), plain())
    assert found.verdict is Verdict.MATCH, found.reason
    assert all(j.smallest for j in found.observations if "tokens" not in j.site)
    assert found.worst_site and found.worst_ratio and "noise" in found.reason


@pytest.mark.parametrize("member", [*toy.BASELINE_RUNS, "truth"])
def test_bits_of_a_baseline_run_or_the_rounded_reference_are_exact(member: str) -> None:
    run = {
        site: value.bfloat16() if value.is_floating_point() else value
        for site, value in plain()[member].items()
    }
    assert toy.judge(run, plain()).verdict is Verdict.EXACT


Fault = Callable[[toy.Observations], None]


def at(site: str, change: Callable[[Tensor], Tensor | None]) -> Fault:
    """A fault that changes one observation; None: it is missing."""

    def fault(run: toy.Observations) -> None:
        changed = change(run.pop(site).clone())
        if changed is not None:
            run[site] = changed

    return fault


def stream(change: Callable[[Tensor], Tensor | None]) -> Fault:
    return at("p1/s0/stream.2", change)


drop = stream(lambda _: None)


def extra(run: toy.Observations) -> None:
    run["p2/s0/logits"] = run["p1/s0/logits"]


def overwritten(run: toy.Observations) -> None:
    for layer in range(toy.LAYERS):
        run[f"p1/s0/stream.{layer}"] = run["p1/s0/stream.4"]


def neighbour(run: toy.Observations) -> None:
    run["p1/s0/stream.2"] = run["p1/s0/stream.3"]


def one_row(value: Tensor) -> Tensor:
    value[4] = value[5]
    return value


def slightly(run: toy.Observations) -> None:
    draw = torch.Generator().manual_seed(0)
    for site, value in run.items():
        if "stream.3" in site:
            off = torch.randn(value.shape, generator=draw) * value.float().median().abs()
            scale = value.float()[:, 8:].norm(dim=-1, keepdim=True) / value.shape[1] ** 0.5
            run[site] = (value.float() + 0.02 * scale * off.sign()).bfloat16()


def massive(value: Tensor) -> Tensor:
    value[0, 7] *= 1.2
    return value


def another_token(run: toy.Observations) -> None:
    run["p1/s0/tokens"] = run["p1/s0/logits"].argmin().reshape(1)


FAULTS: list[tuple[Fault, Verdict, str]] = [
    (at("p0/s0/logits", lambda v: v.float()), Verdict.MATCH, "within the noise"),
    (drop, Verdict.MISSING, "stream after layer 2 of prompt 1"),
    (extra, Verdict.STRUCTURE, "no such observation"),
    (stream(lambda v: v[1:]), Verdict.STRUCTURE, "1 fewer rows"),
    (stream(lambda v: v[None]), Verdict.STRUCTURE, "3 dimensions instead of 2"),
    (stream(lambda v: v.float()), Verdict.DTYPE, "only bf16 precision"),
    (stream(lambda v: v.float() * (1 + 1e-6)), Verdict.DTYPE, "more than bf16 precision"),
    (stream(lambda v: v.to(torch.int64)), Verdict.DTYPE, "int64 instead of bfloat16"),
    (at("p1/s0/tokens", lambda v: v.int()), Verdict.DTYPE, "int32 instead of int64"),
    (
        stream(lambda v: v.index_fill(0, torch.tensor([2]), torch.nan)),
        Verdict.NONFINITE,
        "64 of 576 values are not finite, the first at [2, 0]",
    ),
    (overwritten, Verdict.ALIASED, "layers 0, 1, 2, 3, 4 hold the same value"),
    (neighbour, Verdict.WRONG, "stream after layer 2 of prompt 1"),
    (at("p1/s0/stream.3", one_row), Verdict.WRONG, "tokens 4 of 9 off"),
    (slightly, Verdict.DRIFT, "stream after layer 3"),
    (at("p1/s0/stream.3", massive), Verdict.WRONG, "massive activation"),
    (another_token, Verdict.WRONG, "margin"),
    (at("p1/s0/tokens", lambda _: torch.tensor([-1])), Verdict.WRONG, "no id"),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS)
def test_faults_of_a_read(fault: Fault, kind: Verdict, words: str) -> None:
    run = reading()
    fault(run)
    found = toy.judge(run, plain())
    assert (found.verdict, words in found.reason) == (kind, True), found.reason
    assert not found.harness


@pytest.mark.parametrize("dose", [0.02, 0.5])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("times", "kind", "words"),
    [
        (1.0, Verdict.MATCH, "within the noise"),
        (0.0, Verdict.DROPPED, "no effect: gain 0.00"),
        (2.0, Verdict.MISSCALED, "applied twice: gain 2.0"),
        (-1.0, Verdict.MISSCALED, "opposite sign"),
        (0.5, Verdict.MISSCALED, "another size"),
    ],
)
def test_sizes_of_a_write(dose: float, last: bool, times: float, kind: Verdict, words: str) -> None:
    """Also at a dose whose effect is of the size of the noise itself."""
    run = steering(toy.add(toy.vector(dose), rows(last), times))
    found = toy.judge(run, steered(dose, last), has_edit=True)
    assert found.verdict is kind, found.reason
    if times in {1.0, 0.0} or dose == 0.5:
        assert words in found.reason


STEER = toy.add(toy.vector(0.5))


@pytest.mark.parametrize(
    ("write", "layer", "last", "kind", "words"),
    [
        (lambda v: toy.add(toy.vector(0.5, seed=8))(STEER(v)), AT, False, Verdict.MISSCALED,
         "another direction"),
        (toy.add(toy.vector(0.5), slice(2, None)), AT, False, Verdict.PARTIAL, "tokens 0-1 of"),
        (toy.add(toy.vector(0.5), slice(-2, None)), AT, True, Verdict.CONTAMINATED, "tokens 3 of"),
        (STEER, AT - 1, False, Verdict.CONTAMINATED, "after layer 0"),
    ],
)  # fmt: skip
def test_writes_in_another_direction_on_other_tokens_and_at_another_layer(
    write: toy.Edit, layer: int, last: bool, kind: Verdict, words: str
) -> None:
    found = toy.judge(steering(write, at=layer), steered(0.5, last), has_edit=True)
    assert found.verdict is kind and words in found.reason, found.reason


def test_a_write_on_one_prompt_only_is_partial() -> None:
    run, clean = steering(toy.add(toy.vector(0.5))), steering(toy.add(toy.vector(0.0)))
    run |= {site: value for site, value in clean.items() if site.startswith("edited/p1")}
    found = toy.judge(run, steered(0.5), has_edit=True)
    assert found.verdict is Verdict.PARTIAL and "prompt 1" in found.reason


@pytest.mark.parametrize(("dose", "words"), [(0.0, "changes nothing"), (1e-4, "too small")])
def test_a_write_without_power_is_vacuous(dose: float, words: str) -> None:
    found = toy.judge(steering(toy.add(toy.vector(dose))), steered(dose), has_edit=True)
    assert found.verdict is Verdict.VACUOUS and words in found.reason


def test_a_write_that_could_not_be_compared_is_unknown_and_not_vacuous() -> None:
    """Every step that was written to comes after a token that the reference was not run along."""
    reference = {
        name: {site.replace("/s0/", "/s1/"): value for site, value in values.items()}
        for name, values in steered(0.5).items()
    }
    chosen = [f"{run}/p{prompt}/s0/tokens" for run in ("clean", "edited") for prompt in (0, 1)]
    for values in reference.values():
        values |= {site: torch.tensor([3]) for site in chosen}
    other = reference["eager"] | {site: torch.tensor([4]) for site in chosen}
    assert toy.judge(other, reference, has_edit=True).verdict is Verdict.UNKNOWN


def test_bitwise_equality_is_no_pass_where_nothing_changed() -> None:
    """A baseline run whose write was rounded away entirely is exact and proves nothing."""
    reference = steered(0.0)
    assert toy.judge(reference["eager"], reference, has_edit=True).verdict is Verdict.VACUOUS
    lost = dict(steered(1e-4))
    clean = {k: v for k, v in lost["eager"].items() if k.startswith("clean")}
    still = clean | {k.replace("clean", "edited"): v for k, v in clean.items()}
    lost["eager"] = still
    assert toy.judge(still, lost, has_edit=True).verdict is Verdict.VACUOUS


@pytest.mark.parametrize("dose", [0.5, 0.02])
def test_bits_of_a_baseline_run_are_exact_with_a_write(dose: float) -> None:
    found = toy.judge(steered(dose)["padded"], steered(dose), has_edit=True)
    assert found.verdict is Verdict.EXACT, found.reason


@pytest.mark.parametrize("sound", [(), (0, AT)])
def test_a_read_that_is_wrong_in_the_clean_run_is_not_blamed_on_the_write(sound):
    """Nor is it excused as a check without power where only the read-back is sound."""
    run = steering(STEER)
    for site in map(Site.parse, list(run)):
        if site.layer not in sound:
            run[str(site)] = run[str(site)].roll(1, dims=-1)
    found = toy.judge(run, steered(0.5), has_edit=True)
    assert found.verdict is Verdict.WRONG and "clean run" in found.reason


@pytest.mark.parametrize("at", [0, 2, 4])
def test_ablation_leaves_zeros_and_zeros_only(at: int) -> None:
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        return toy.edited(dtype, parts, {at: toy.zero}, at)

    reference = toy.reference(run)
    assert toy.judge(run(BF16, toy.CANDIDATE), reference, has_edit=True).verdict is Verdict.MATCH
    off = run(BF16, toy.CANDIDATE)
    off[f"edited/p0/s0/stream.{at}"] = off[f"edited/p0/s0/stream.{at}"] + 1e-30
    found = toy.judge(off, reference, has_edit=True)
    assert found.verdict is Verdict.WRONG and "not zero" in found.reason
    undone = run(BF16, toy.CANDIDATE)
    undone |= {k.replace("clean", "edited"): v for k, v in undone.items() if "clean" in k}
    assert toy.judge(undone, reference, has_edit=True).verdict is Verdict.DROPPED


def test_an_equal_pair_that_is_not_equal_is_wrong() -> None:
    run, equal = toy.observe_twice("source"), [("source", "stream.1")]
    good = run(BF16, toy.CANDIDATE)
    assert toy.judge(good, toy.reference(run), equal=equal).verdict is Verdict.MATCH
    good["p0/s0/source"][0, 0] *= 1.004
    found = toy.judge(good, toy.reference(run), equal=equal, bitwise=True)
    assert found.verdict is Verdict.WRONG and "source ≡ stream.1" in found.reason
    # Where batches of other sizes round in other ways, as on a GPU, rounding breaks no pair.
    assert toy.judge(good, toy.reference(run), equal=equal).verdict is Verdict.MATCH
    good["p0/s0/source"] = -good["p0/s0/source"]
    found = toy.judge(good, toy.reference(run), equal=equal)
    assert found.verdict is Verdict.WRONG and "source ≡ stream.1" in str(found.relations)


#: What an engine may hand over that is no observation of these shapes.
MISSHAPEN: dict[str, Callable[[Tensor], Tensor]] = {
    "no rows": lambda value: value[:0],
    "no columns": lambda value: value[..., :0],
    "nothing": lambda value: value.new_zeros(0),
    "one number": lambda value: value.reshape(-1)[0],
    "flat": lambda value: value.reshape(-1),
    "deep": lambda value: value[None, None],
    "bits": lambda value: value.bool(),
    "complex": lambda value: value.to(torch.complex64),
    "infinite": lambda value: torch.full_like(value.float(), torch.inf),
}


@cache
def paired(has_edit: bool) -> tuple[dict[str, toy.Observations], toy.Observations]:
    """A reference and a baseline run, of which a value is observed a second time."""

    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        write = {AT: toy.add(toy.vector(4.0), rows(last=False))}
        seen = toy.edited(dtype, parts, write) if has_edit else toy.observe(dtype, parts)
        again = {site.replace("stream.1", "alone"): seen[site] for site in seen if ".1" in site}
        return seen | {site: value.clone() for site, value in again.items()}

    return toy.reference(run), run(BF16, toy.CANDIDATE)


@given(st.data(), st.booleans())
def test_whatever_an_engine_hands_over_is_judged_and_does_not_pass(data, has_edit):
    reference, good = paired(has_edit)
    pairs = [("alone", "stream.1")]
    judged = partial(toy.judge, has_edit=has_edit, equal=pairs, equal_alone=pairs, bitwise=True)
    assert judged(good, reference).verdict.passes
    run = dict(good)
    kinds = st.sampled_from(sorted(MISSHAPEN))
    if data.draw(st.booleans()):
        kind = data.draw(kinds)
        run = {site: MISSHAPEN[kind](value) for site, value in run.items()}
    else:
        for site in data.draw(st.sets(st.sampled_from(sorted(run)), min_size=1)):
            run[site] = MISSHAPEN[data.draw(kinds)](run[site])
    same = all(
        run[site].dtype == good[site].dtype and torch.equal(run[site], good[site]) for site in run
    )
    found = judged(run, reference)
    assert found.verdict.passes is same, (found.verdict, found.reason)
    assert not found.harness


def test_beside_others_is_held_to_the_bits_of_alone_where_the_engine_keeps_them() -> None:
    run, pairs = toy.observe_twice("alone"), [("alone", "stream.1")]
    rounded = run(BF16, toy.CANDIDATE)
    rounded["p0/s0/alone"][0, 0] *= 1.004
    reference = toy.reference(run)
    judged = partial(toy.judge, rounded, reference, equal_alone=pairs)
    assert judged(bitwise=True).verdict is Verdict.MATCH  # bits come again, but not beside others
    found = judged(bitwise=True, bitwise_beside=True)
    assert found.verdict is Verdict.WRONG and "alone ≡ stream.1" in found.reason
    rounded["p0/s0/alone"] = -rounded["p0/s0/alone"]
    assert "alone ≡ stream.1" in str(judged(bitwise=True).relations)


def test_beside_others_an_edited_run_is_held_to_bits_where_its_clean_run_has_them() -> None:
    # Which kernel computes a product may follow from the number of rows, which is this batch's own.
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        found = toy.edited(dtype, parts, {AT: lambda stream: stream + 1.0}, AT)
        alone = {
            f"{name}/p0/s0/alone": found[f"{name}/p0/s0/stream.1"] for name in ("clean", "edited")
        }
        return found | {site: value.clone() for site, value in alone.items()}

    reference = toy.reference(run)
    run_names = ("clean", "edited")
    cases = ((["edited"], False), (run_names, True), (["clean"], True))
    for (off, holds), promised in itertools.product(cases, (False, True)):
        rounded = run(BF16, toy.CANDIDATE)
        for name in off:
            rounded[f"{name}/p0/s0/alone"][0, 0] *= 1.004
        found = toy.judge(
            rounded, reference, has_edit=True, equal_alone=[("alone", "stream.1")], bitwise=True,
            bitwise_beside=True, batch_invariant=promised,
        )  # fmt: skip
        kept = next(each for each in found.relations if each.name == "alone ≡ stream.1")
        assert kept.holds is (holds and not promised), (off, promised)


def generated(forced: tuple[tuple[int, ...], ...] = ()) -> toy.Observations:
    return toy.observe(BF16, toy.CANDIDATE, steps=4, forced=forced)


def generation(forced: tuple[tuple[int, ...], ...] = ()) -> dict[str, toy.Observations]:
    held = forced or toy.tokens_of(toy.observe(torch.float32, 1, steps=4))
    return toy.reference(lambda d, p: toy.observe(d, p, steps=4, forced=held))


def with_a_flip() -> tuple[toy.Observations, tuple[tuple[int, ...], ...]]:
    """A run with another token at step 1 of prompt 1, and its tokens."""
    first, (before, token, *after) = toy.tokens_of(generated())
    forced = (first, (before, (token + 1) % toy.VOCABULARY, *after))
    return generated(forced), forced


def verdicts(found: Judgement) -> dict[str, Verdict]:
    return {j.site: j.verdict for j in found.observations}


def test_generation_along_the_candidates_own_tokens() -> None:
    run = generated()
    found = toy.judge(run, generation(toy.tokens_of(run)))
    assert found.verdict is Verdict.MATCH, found.reason
    flips, follow = found.relations[-2:]
    assert flips.holds and "0 of 8" in flips.detail
    assert follow.holds and follow.detail == "8 steps"


def test_a_flip_is_judged_by_its_margin_and_later_steps_by_a_forced_reference() -> None:
    flipped, forced = with_a_flip()
    found = toy.judge(flipped, generation(forced))
    assert found.verdict is Verdict.WRONG and verdicts(found)["p1/s1/tokens"] is Verdict.WRONG
    assert verdicts(found)["p1/s3/logits"] is Verdict.MATCH
    assert "first at p1/s1/tokens" in found.relations[-2].detail


@pytest.mark.parametrize(
    ("logits_too", "follows", "expected"),
    [(True, True, Verdict.DRIFT), (True, False, Verdict.WRONG), (False, True, Verdict.WRONG)],
)
def test_a_token_that_follows_from_logits_that_drift_drifts_as_they_do(
    logits_too: bool, follows: bool, expected: Verdict
) -> None:
    """The last token of a prompt is the reference's second, far within its margin; with logits that
    say so and are some ten times as far off as baseline ones, or without.
    """
    run = generated()
    logits = run["p1/s3/logits"].float()
    first, second = logits.topk(2).indices.tolist()
    run["p1/s3/tokens"] = torch.tensor([second])
    if logits_too:
        gap = logits[first] - logits[second] + 0.5
        logits[first] -= gap / 2
        logits[second] += gap / 2
        run["p1/s3/logits"] = logits.to(BF16)
    if not follows:
        run["p1/s3/tokens"] = logits.argmin().reshape(1)
    found = toy.judge(run, generation())
    assert (verdicts(found)["p1/s3/logits"] is Verdict.DRIFT) is logits_too
    assert verdicts(found)["p1/s3/tokens"] is expected is found.verdict, found.reason
    if expected is Verdict.DRIFT:
        assert "0 of 7" in found.relations[-2].detail


LENIENT = replace(BF16_LIMITS, margin=1e9)


def test_steps_after_a_difference_are_unknown_when_the_reference_was_not_forced() -> None:
    found = toy.judge(with_a_flip()[0], generation(), limits=LENIENT)
    # The id is not the largest of its own logits, which needs no reference along it.
    assert found.verdict is Verdict.WRONG and "largest of their own logits" in found.reason
    assert verdicts(found)["p1/s1/logits"] is Verdict.MATCH
    assert verdicts(found)["p1/s2/logits"] is Verdict.UNKNOWN
    assert verdicts(found)["p0/s3/logits"] is Verdict.MATCH


def test_what_could_not_be_compared_is_unknown_though_something_else_drifts() -> None:
    first, (before, _, *after) = toy.tokens_of(generated())
    reference = toy.reference(partial(toy.observe, steps=4))
    torch.manual_seed(0)
    other = int(reference["truth"]["p1/s1/logits"].topk(2).indices[1])
    flipped = generated((first, (before, other, *after)))
    flipped["p1/s1/logits"] = reference["eager"]["p1/s1/logits"].clone()
    for site in [site for site in flipped if site.startswith("p1/s2/") and "tokens" not in site]:
        flipped[site] = torch.randn(flipped[site].shape).to(flipped[site].dtype)
    for step in (1, 2, 3):  # each id is the largest of its own logits
        logits = flipped[f"p1/s{step}/logits"]
        logits[int(flipped[f"p1/s{step}/tokens"])] = logits.max() * 1.01
    rounded = flipped["p0/s0/stream.2"]
    flipped["p0/s0/stream.2"] = rounded + (0.02 * torch.randn(rounded.shape)).to(BF16)
    found = toy.judge(flipped, reference, limits=LENIENT)
    kinds = set(verdicts(found).values())
    assert {Verdict.UNKNOWN, Verdict.DRIFT} <= kinds and Verdict.WRONG not in kinds
    assert found.verdict is Verdict.UNKNOWN and found.harness


def renamed(values: toy.Observations, name: str) -> toy.Observations:
    """Copies of the tokens under another name."""
    ids = {site: value for site, value in values.items() if site.endswith("tokens")}
    return {site.replace("tokens", name): value.clone() for site, value in ids.items()}


@pytest.mark.parametrize(("step", "other"), [(3, 0), (3, 1), (1, 0)])
def test_what_repeats_a_flipped_token_is_held_to_that_token(step: int, other: int) -> None:
    """As `tracer.result` does. The last id is nobody's context: no reference is run along it."""
    run, known = generated(), generation()
    for values in (run, *known.values()):
        values.update(renamed(values, "result"))
    run[f"p1/s{step}/tokens"] = (run[f"p1/s{step}/tokens"] + 1) % toy.VOCABULARY
    run[f"p1/s{step}/result"] = (run[f"p1/s{step}/tokens"] + other) % toy.VOCABULARY
    found = verdicts(toy.judge(run, known, limits=LENIENT))
    assert found[f"p1/s{step}/tokens"] is Verdict.MATCH
    assert found[f"p1/s{step}/result"] is (Verdict.WRONG if other else Verdict.MATCH)


@pytest.mark.parametrize("laid_down", [False, True])
def test_an_id_that_could_have_been_laid_down_is_a_choice_where_it_was_not(laid_down: bool) -> None:
    """`sampled` is what a block may have forced: the steps that it left alone are greedy."""
    site, known, run = "p1/s3/sampled", generation(), generated()
    for values in (run, *known.values()):
        values.update(renamed(values, "sampled"))
        for name in [name for name in values if name.endswith("tokens")]:
            del values[name]
    assert toy.judge(run, known).verdict is Verdict.MATCH
    if laid_down:
        for values in known.values():
            values[site] = known["truth"]["p1/s3/logits"].argmin().reshape(1)
    run[site] = (known["truth"][site] + 1) % toy.VOCABULARY
    expected = Verdict.WRONG if laid_down else Verdict.MATCH
    assert verdicts(toy.judge(run, known, limits=LENIENT))[site] is expected
    assert verdicts(toy.judge(run, known))[site] is Verdict.WRONG


def test_tokens_without_the_references_logits_are_unknown() -> None:
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        return toy.observe(dtype, parts, only=lambda site: site.name != "logits")

    found = toy.judge(run(BF16, toy.CANDIDATE), toy.reference(run))
    assert found.verdict is Verdict.UNKNOWN and "logits" in found.reason


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((toy.IDS[0], (1, *toy.IDS[1])), "extra first token 1"),
        ((toy.IDS[0], toy.IDS[1][1:]), "first token 27 is missing"),
        ((toy.IDS[0],), "0 ids instead of 9"),
        (((3, 14, 15, 92, 66), toy.IDS[1]), "at position 4 66 instead of 65"),
    ],
)
def test_other_token_ids_are_compared_before_numbers(ids, words):
    found = toy.judge(reading(), plain(), ids=ids)
    assert found.verdict is Verdict.STRUCTURE and words in found.reason
    assert verdicts(found) == dict.fromkeys(plain()["truth"], Verdict.UNKNOWN)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("observed_beside", [True, False])
def test_a_difference_that_is_zero_is_scaled_by_its_operands(precision, observed_beside):
    """Transformers computes both operands by one kernel; an engine may round them apart."""
    dtype = getattr(torch, precision.dtype)
    begin = "float32_" if precision is Precision.FLOAT32 else ""
    reference = toy.observe(torch.float32, 1)
    stream = reference["p0/s0/stream.3"]
    size = float(stream.norm(dim=-1).median())

    def both(run: toy.Observations, difference: Tensor) -> toy.Observations:
        values = run if observed_beside else {}
        return values | {"p0/s0/difference": difference.to(dtype)}

    zero = torch.zeros_like(stream)
    baseline_runs = {
        f"{begin}{name}": both(toy.observe(dtype, parts), zero)
        for name, parts in toy.BASELINE_RUNS.items()
    }
    known = {"truth": both(reference, zero)} | baseline_runs
    reading = {"width": toy.WIDTH, "stream": size / toy.WIDTH**0.5}

    def judged(off: float) -> Verdict:
        direction = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0))
        rounding = off * size * direction / direction.norm(dim=-1, keepdim=True)
        run = both(toy.observe(dtype, toy.CANDIDATE), rounding)
        return toy.judge(run, known, precision=precision, reading=reading).verdict

    rounding = metrics.ROUNDING[precision]
    assert judged(rounding).passes
    assert judged(3000 * rounding) is Verdict.WRONG


def test_what_the_harness_lacks_is_unknown() -> None:
    three = {k: v for k, v in plain().items() if k != "split"}
    untrue = {k: v for k, v in plain().items() if k != "truth"}
    holes = plain() | {"sdpa": {k: v for k, v in plain()["sdpa"].items() if "logits" not in k}}
    empty: dict[str, toy.Observations] = {name: {} for name in plain()}
    for reference in (three, untrue, holes, empty):
        found = toy.judge(reading(), reference)
        assert found.verdict is Verdict.UNKNOWN and found.harness and found.reason
    for ids in ((), (toy.IDS[0], ())):
        assert toy.judge(reading(), plain(), ids=ids).verdict is Verdict.UNKNOWN
    assert toy.judge(reading(), plain(), has_edit=True).verdict is Verdict.UNKNOWN
    assert toy.judge({}, plain()).verdict is Verdict.MISSING


def test_missing_comes_before_everything_else() -> None:
    run = reading()
    drop(run)
    run["p0/s0/stream.0"] = run["p0/s0/stream.0"][1:]
    run["p0/s0/stream.1"] = run["p0/s0/stream.1"].float()
    run["p0/s0/stream.3"] = run["p0/s0/stream.3"] * torch.nan
    assert toy.judge(run, plain()).verdict is Verdict.MISSING


def test_the_order_names_every_verdict_of_the_judge_once() -> None:
    ran = {Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT, Verdict.UNSUPPORTED, Verdict.SKIPPED}
    assert set(verdict.ORDER) == set(Verdict) - ran - {Verdict.UNTESTABLE}
    assert len(set(verdict.ORDER)) == len(verdict.ORDER)
    assert verdict.deciding([])[0] is Verdict.UNKNOWN


def test_limits_decide() -> None:
    run = reading()
    for name in ("k_max", "k_med"):
        marked = replace(BF16_LIMITS, **{name: 0.5})
        assert toy.judge(run, plain(), limits=marked).verdict is Verdict.DRIFT
    tight = replace(BF16_LIMITS, k_max=0.5, far_max=0.6)
    assert toy.judge(run, plain(), limits=tight).verdict is Verdict.WRONG
    slightly(run)
    loose = replace(BF16_LIMITS, k_med=50, k_max=50)
    assert toy.judge(run, plain(), limits=loose).verdict is Verdict.MATCH


@given(st.permutations(sorted(plain()["truth"])))
def test_the_order_of_observations_does_not_matter(order: list[str]) -> None:
    run = reading()
    shuffled = {site: run[site] for site in order}
    assert to_json(toy.judge(shuffled, plain())) == to_json(toy.judge(run, plain()))


def test_places_in_words() -> None:
    site = Site("logits", 1, 2, run="edited")
    assert verdict.place(site) == "logits of prompt 1, step 2, edited run"
    sites = [str(Site("stream", 0, 0, layer)) for layer in range(5)]
    assert verdict.places(sites).endswith("and 2 more")


def test_prompts_of_other_widths_are_explained_each_by_itself() -> None:
    """Norms of all tokens, say: as many as a prompt has."""
    draw = torch.Generator().manual_seed(0)
    reference = {
        f"p{n}/s0/norms": torch.rand(size, generator=draw) for n, size in enumerate((6, 1))
    }
    ways = {
        f"bf16_{k}": {s: v * (1 + k * 1e-3) for s, v in reference.items()} for k in (2, 1, -1, -2)
    }
    off = reference | {"p0/s0/norms": reference["p0/s0/norms"].flip(0)}
    found = toy.judge(off, {"truth": reference, **ways})
    assert found.verdict is Verdict.WRONG, found.reason


@pytest.mark.parametrize(
    ("times", "leak", "holds"),
    [(1.0, False, True), (0.0, False, False), (2.0, False, False), (1.0, True, False)],
)
def test_where_the_clean_run_is_wrong_a_write_is_held_to_a_rule_of_its_own(times, leak, holds):
    """The cell is wrong as it is; a fault of the write besides must not hide behind that."""
    off = toy.edited(BF16, toy.CANDIDATE, {AT: toy.add(toy.vector(0.5), rows(True), times=times)})
    for site in [site for site in off if "stream.3" in site]:
        off[site] = off[site] + 3.0
        if leak and "edited" in site:
            off[site][0] += 1.0
    found = toy.judge(off, steered(0.5, last=True), has_edit=True)
    broken = [relation for relation in found.relations if not relation.holds]
    assert found.verdict.fails
    assert bool(broken) is not holds or found.verdict is not Verdict.WRONG
    if leak:
        assert any("though the clean run is off" in relation.name for relation in broken)


@pytest.mark.parametrize(
    ("precision", "alone", "step", "expected"),
    [
        (Precision.BF16, False, None, Verdict.MATCH),
        (Precision.BF16, False, 2, Verdict.DRIFT),
        (Precision.BF16, True, 2, Verdict.UNKNOWN),
        (Precision.BF16, False, 0, Verdict.WRONG),
        (Precision.FLOAT32, True, None, Verdict.MATCH),
        (Precision.FLOAT32, True, 2, Verdict.WRONG),
    ],
)
def test_steps_without_token_ids_are_judged_as_far_as_they_can_be(precision, alone, step, expected):
    dtype = getattr(torch, precision.dtype)
    begin = "float32_" if precision is Precision.FLOAT32 else ""

    def observe(dtype: torch.dtype, parts: int) -> toy.Observations:
        found = toy.observe(dtype, parts, steps=3, forced=((1, 2, 3), (4, 5, 6)))
        return {site: value for site, value in found.items() if "stream" in site}

    baseline_runs = {
        f"{begin}{name}": observe(dtype, parts) for name, parts in toy.BASELINE_RUNS.items()
    }
    known = {"truth": observe(torch.float32, 1)} | baseline_runs
    mine = observe(dtype, toy.CANDIDATE)
    if step is not None:
        mine[f"p0/s{step}/stream.2"] = -mine[f"p0/s{step}/stream.2"]
    found = toy.judge(mine, known, precision=precision, reading={"width": toy.WIDTH}, alone=alone)
    assert found.verdict is expected, found.reason

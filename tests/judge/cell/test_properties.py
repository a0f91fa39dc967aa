"""What must hold of every judgement: orders that do not matter, sizes that do, and no pass
where a value is missing or is no number. On a toy network with real bf16 noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from conformance.judge.cell.judge_cell import distances
from conformance.judge.cell.measures import floor, gain, metrics
from conformance.judge.cell.reference import read_reference
from conformance.spec.records import BF16_LIMITS, Site, Verdict
from tests.judge.cell import toy

BF16 = torch.bfloat16
AT = 1
STEPS = 3
Runs = Mapping[str, toy.Observations]


@cache
def reads() -> tuple[toy.Observations, Runs]:
    return toy.observe(BF16, toy.CANDIDATE), toy.reference(toy.observe)


@cache
def generations() -> tuple[toy.Observations, Runs]:
    """Several steps, with tokens."""
    run = toy.observe(BF16, toy.CANDIDATE, steps=STEPS)
    held = toy.tokens_of(run)
    return run, toy.reference(lambda d, p: toy.observe(d, p, steps=STEPS, forced=held))


@cache
def writes() -> tuple[toy.Observations, Runs]:
    """A clean and an edited run, of several steps."""
    write = {AT: toy.add(toy.vector(0.5))}
    run = toy.edited(BF16, toy.CANDIDATE, write, steps=STEPS)
    held = {name: toy.tokens_of(run, name) for name in ("clean", "edited")}
    return run, toy.reference(lambda d, p: toy.edited(d, p, write, steps=STEPS, forced=held))


CELLS = {"reads": reads, "generations": generations, "writes": writes}
cells = st.sampled_from(sorted(CELLS))


def judged(name: str, run: Mapping[str, Tensor], runs: Runs) -> Verdict:
    return toy.judge(run, runs, has_edit=name == "writes").verdict


def replaced(value: Tensor, at: int, by: float) -> Tensor:
    found = value.clone() if value.is_floating_point() else value.to(torch.float32)
    found.view(-1)[at] = by
    return found


@pytest.mark.parametrize("name", sorted(CELLS))
def test_the_cells_pass_as_they_are(name: str) -> None:
    """Else nothing below would mean anything."""
    run, runs = CELLS[name]()
    assert judged(name, run, runs).passes
    assert {Site.parse(site).step for site in run} == set(range(1 if name == "reads" else STEPS))


wild = st.sampled_from([math.nan, math.inf, -math.inf])


@given(cells, wild, st.data())
def test_no_pass_with_a_value_that_is_no_number_anywhere(name, value, data):
    run, runs = CELLS[name]()
    site = data.draw(st.sampled_from(sorted(run)))
    at = data.draw(st.integers(0, run[site].numel() - 1))
    verdict = judged(name, {**run, site: replaced(run[site], at, value)}, runs)
    assert not verdict.passes and not verdict.neutral
    # Also where every baseline run, and so the bits to be compared with, has the same.
    spoiled = {
        member: {**values, site: replaced(values[site], at, value)}
        for member, values in runs.items()
    }
    assert not judged(name, {**run, site: replaced(run[site], at, value)}, spoiled).passes


@given(cells, wild, st.data())
def test_no_pass_by_a_reference_with_a_value_that_is_no_number(name, value, data):
    run, runs = CELLS[name]()
    member = data.draw(st.sampled_from(sorted(runs)))
    site = data.draw(st.sampled_from(sorted(site for site in run if "tokens" not in site)))
    at = data.draw(st.integers(0, run[site].numel() - 1))
    spoiled = {**runs[member], site: replaced(runs[member][site], at, value)}
    assert judged(name, run, {**runs, member: spoiled}) is Verdict.UNKNOWN


@given(cells, st.data())
def test_no_pass_with_an_observation_missing_anywhere(name: str, data: st.DataObject) -> None:
    run, runs = CELLS[name]()
    gone = data.draw(st.sets(st.sampled_from(sorted(run)), min_size=1))
    left = {site: value for site, value in run.items() if site not in gone}
    assert judged(name, left, runs) is Verdict.MISSING


@given(st.permutations(range(len(toy.IDS[1]))))
def test_the_order_of_the_tokens_changes_no_figure(order: list[int]) -> None:
    """The rows of every stream of one prompt, moved alike on all sides."""
    run, runs = reads()

    def moved(values: toy.Observations) -> toy.Observations:
        return {
            site: value[order] if "p1/s0/stream" in site else value
            for site, value in values.items()
        }

    plain = toy.judge(run, runs)
    other = toy.judge(moved(run), {member: moved(values) for member, values in runs.items()})
    assert other.verdict is plain.verdict
    for left, right in zip(plain.observations, other.observations, strict=True):
        assert (left.site, left.verdict) == (right.site, right.verdict)
        if left.q_max is not None:
            assert (left.q_med, left.q_max) == pytest.approx((right.q_med, right.q_max), rel=1e-6)
            rows = order if "p1/s0/stream" in left.site else range(len(left.ratios))
            assert [left.ratios[i] for i in rows] == pytest.approx(right.ratios, rel=1e-6)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=2, max_size=5, unique=True),
    st.sampled_from(sorted(site for site in reads()[0] if "tokens" not in site)),
    st.integers(0, 50),
)
@example([0.001, 1.0], "p0/s0/stream.3", 1)  # with a massive dimension
def test_a_larger_error_is_never_judged_milder(doses: list[float], site: str, seed: int) -> None:
    """An error orthogonal to the noise, in float64: what failed fails with more of it."""
    run, runs = reads()
    reference = read_reference(runs, has_edit=False)
    assert not isinstance(reference, str)
    place = Site.parse(site)
    noise_floor = reference.floor(place)
    base = metrics.rows(run[site])
    off = (noise_floor.view(base) - noise_floor.reference) * noise_floor.bulk

    def along_off(error: Tensor) -> Tensor:
        """How much of what the judge sees of an error lies along the noise."""
        return (noise_floor.view(error) * off).sum(-1, keepdim=True)

    draw = torch.randn(base.shape, generator=torch.Generator().manual_seed(seed)).double()
    draw = draw * noise_floor.bulk
    # It is the error as the judge sees it, without massive dimensions and perhaps without a
    # row's mean, that must be orthogonal.
    draw = draw - along_off(draw) / along_off(off) * off
    draw *= (noise_floor.scale / draw.norm(dim=-1)).unsqueeze(-1)
    found = [
        dict(distances(reference, {place: base + dose * draw}, BF16_LIMITS))[place]
        for dose in [0.0, *sorted(doses)]
    ]
    for smaller, larger in itertools.pairwise(found):
        assert larger.q_med >= smaller.q_med * (1 - 1e-9)
        assert larger.q_max >= smaller.q_max * (1 - 1e-9)
        if not floor.within(smaller, BF16_LIMITS):
            assert not floor.within(larger, BF16_LIMITS)


def test_many_observations_are_measured_as_one_by_one() -> None:
    run, runs = generations()
    together, alone = (read_reference(runs, has_edit=False) for _ in range(2))
    assert not isinstance(together, str) and not isinstance(alone, str)
    rows = {
        Site.parse(site): metrics.rows(value)
        for site, value in run.items()
        if value.is_floating_point()
    }
    together.prepare(rows)
    found = dict(distances(together, rows, BF16_LIMITS))
    assert found.keys() == rows.keys()
    for site, value in rows.items():
        single = toy.measure(value, alone.floor(site), BF16_LIMITS)
        assert single.ratios == pytest.approx(found[site].ratios, rel=1e-9)
        assert single.smallest == pytest.approx(found[site].smallest, rel=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=8), st.integers(0, 100), st.booleans())
def test_the_gain_of_every_token_is_exact(gains: list[float], seed: int, shuffled: bool) -> None:
    """Δc = g·Δr, row by row: each row's g, and of the whole the mean weighted by ‖Δr‖²."""
    draw = torch.Generator().manual_seed(seed)
    clean, delta = torch.randn(2, len(gains), 24, generator=draw, dtype=torch.float64)
    noise = 1e-3 * torch.randn(2, 4, len(gains), 24, generator=draw, dtype=torch.float64)
    floors = [toy.floor(clean, clean + noise[0])]
    floors += [toy.floor(clean + delta, clean + delta + noise[1])]
    g = torch.tensor(gains, dtype=torch.float64)
    pairs = [gain.RunPair(clean, clean + g.unsqueeze(-1) * delta, *floors)]
    if shuffled:  # another observation in the same batch changes nothing
        pairs.insert(0, gain.RunPair(clean, clean - delta, *floors))
    found = gain.changes(pairs, BF16_LIMITS)[-1]
    assert found.touched == tuple(range(len(gains)))
    assert found.token_g.tolist() == pytest.approx(gains, abs=1e-9)
    mask = floors[0].bulk
    weight = (delta * mask).square().sum(-1)
    whole = float((g * weight).sum() / weight.sum())
    assert found.g == pytest.approx(whole, abs=1e-9)
    spread = float((((g - whole) ** 2) * weight).sum() / weight.sum())
    assert found.h == pytest.approx(math.sqrt(spread), abs=1e-6)

"""Detection limits in both precisions, of what writes and of what only reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.commands.selftest import doses, sensitivity
from conformance.commands.selftest.doses import Chance, DosedCell
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.reference import ReferenceRuns, read_reference
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.records import (
    Backend,
    Group,
    Model,
    Outcome,
    Precision,
    Site,
    Status,
    Thresholds,
)
from conformance.spec.records.injected import Kind, Limit
from conformance.spec.scenario import Scenario, scenario
from tests.judge.cell import toy

MODEL = Model("toy", "llama", ())
COPY = "copied"
FLOAT32, BF16 = Precision.FLOAT32, Precision.BF16


@scenario(twin=True)
def written(lm: object, case: object) -> None: ...


@scenario(twin=True)
def faint(lm: object, case: object) -> None: ...


@scenario()
def read(lm: object, case: object) -> None: ...


@scenario(equal=(("stream", COPY),))
def copied(lm: object, case: object) -> None: ...


def observe(one: Scenario, dtype: torch.dtype, parts: int) -> toy.Observations:
    """What the scenario would; a write changes the stream by a hundredth of it, or by half that."""
    if one in (written, faint):
        size = 0.01 if one is written else 0.005
        return toy.edited(dtype, parts, {1: toy.add(toy.vector(size), slice(-1, None))})
    found = toy.observe(dtype, parts)
    again = {
        str(Site(COPY, site.prompt, site.step, site.layer)): value.clone()
        for name, value in found.items()
        if (site := Site.parse(name)).name == "stream"
    }
    return found | again if one is copied else found


def members(one: Scenario) -> dict[str, toy.Observations]:
    """The reference and baseline runs of both precisions."""

    def observed(dtype: torch.dtype, parts: int) -> toy.Observations:
        return observe(one, dtype, parts)

    ways = {f"float32_{parts}": observed(torch.float32, parts) for parts in (2, 3, 4)}
    return toy.reference(observed) | ways


def limits(
    folder: Path,
    one: Scenario,
    precision: Precision,
    thresholds: Thresholds | None = None,
    trials: int = 6,
) -> dict[Kind, Limit]:
    """Of a stored run with a fault-free column."""
    run = RunFolder(folder)
    [case] = one.expand(toy.LAYERS)
    reference = run.group_folder(MODEL.id, REFERENCE.id)
    identity = {"layers": toy.LAYERS, "width": toy.WIDTH}
    reference.write_group(Group(MODEL.id, REFERENCE.id, identity=identity))
    outcome = Outcome(Status.OK, prompt_ids=toy.IDS)
    known = {f"{m}|{site}": v for m, values in members(one).items() for site, v in values.items()}
    reference.write_cell(case.key, outcome, known)
    fault_free = observe(one, getattr(torch, precision.dtype), toy.CANDIDATE)
    column = Group(MODEL.id, "hf", identity={"device": "cpu"})  # its bits come again
    run.group_folder(MODEL.id, gathered_in("hf", precision)).write_group(column)
    run.write_cell(MODEL.id, gathered_in("hf", precision), case.key, outcome, fault_free)
    found = sensitivity.limits(
        run,
        MODEL,
        [Backend("hf", "hf")],
        {one.name: one},
        thresholds or Thresholds(),
        precision=precision,
        trials=trials,
    )
    return {limit.kind: limit for limit in found}


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("one", [written, read], ids=["written", "read"])
def test_each_cell_has_the_limits_of_its_kind_in_both_precisions(
    tmp_path: Path, one: Scenario, precision: Precision
) -> None:
    found = limits(tmp_path, one, precision)
    assert set(found) == {kind for kind in Kind if kind.of_write is (one is written)}
    for limit in found.values():
        assert limit.precision is precision and limit.holds
        assert limit.half is not None and limit.most is not None and limit.half <= limit.most


def test_a_write_below_the_noise_of_bf16_has_doses_beyond_its_effect(tmp_path: Path) -> None:
    coarse = limits(tmp_path / "bf16", written, BF16)[Kind.OFF_AXIS]
    fine = limits(tmp_path / "float32", written, FLOAT32)[Kind.OFF_AXIS]
    assert coarse.largest == 128.0 and fine.largest == 1.0
    assert coarse.most is not None and 1.0 < coarse.most < coarse.largest
    assert fine.most is not None and fine.most < 1e-3


def test_a_write_that_noise_hides_has_limits_beside_float32_that_shows_it(tmp_path: Path) -> None:
    """By itself bf16 says that nothing shows the write's arrival, which float32 has shown."""
    coarse = limits(tmp_path, faint, BF16)
    assert set(coarse) == {kind for kind in Kind if kind.of_write}
    assert coarse[Kind.LEAK].half is not None


@pytest.mark.parametrize("precision", Precision)
def test_the_error_that_is_found_is_what_the_floor_allows(
    tmp_path: Path, precision: Precision
) -> None:
    """Of a row: its limit times its noise, and at most an eighth of an octave more or less."""
    known = read_reference(members(read), has_edit=False, precision=precision, width=toy.WIDTH)
    assert isinstance(known, ReferenceRuns)
    streams = [site for site in known.reference_values if site.name in ("stream", "logits")]
    relative = torch.cat([known.floor(site).noise / known.floor(site).scale for site in streams])
    allowed = Thresholds().of(precision).k_max * relative
    most = limits(tmp_path, read, precision, trials=30)[Kind.SERVED_ROW].most
    assert most is not None
    step = 2.0**0.25
    assert float(allowed.min()) / step <= most <= step * float(allowed.max())


def cell(one: Scenario) -> DosedCell:
    known = read_reference(members(one), has_edit=False, precision=FLOAT32, width=toy.WIDTH)
    assert isinstance(known, ReferenceRuns)
    return DosedCell(observe(one, torch.float32, toy.CANDIDATE), known)


def faulty(into: DosedCell, kind: Kind, number: int, dose: float) -> dict[str, Tensor]:
    """What a fault changes of a fault-free cell: its error by site."""
    fault = doses.fault(into, kind, Chance(f"{kind} {number}"))
    assert fault is not None
    return {
        name: metrics.rows(value) - metrics.rows(into.observed[name])
        for name, value in fault(dose).items()
        if not torch.equal(value, into.observed[name])
    }


@pytest.mark.parametrize("kind", [Kind.SERVED, Kind.SERVED_ROW])
def test_an_error_in_what_is_served_has_the_dose_of_the_rows_length(kind: Kind) -> None:
    """As the judge compares rows: the massive dimension of layer 2 and later stays as it was."""
    fault_free = cell(read)
    for number in range(12):
        [(name, error)] = faulty(fault_free, kind, number, 0.25).items()
        floor = fault_free.reference.floor(Site.parse(name))
        moved = (error.norm(dim=-1) / floor.scale).tolist()
        off = [share for share in moved if share]
        assert off == pytest.approx([0.25] * len(off), rel=1e-4)
        assert len(off) == (1 if kind is Kind.SERVED_ROW else len(moved))
        assert not error[~floor.bulk].any()


def test_what_holds_the_same_value_has_the_same_error(tmp_path: Path) -> None:
    """Else the two would not be equal any more, which the smallest dose shows."""
    fault_free = cell(copied)
    both = [faulty(fault_free, Kind.SERVED, number, 0.25) for number in range(6)]
    assert any(len(errors) == 2 for errors in both)
    for errors in both:
        assert len({Site.parse(name).name == "logits" for name in errors}) == 1
        first, *others = errors.values()
        assert all(torch.equal(first, other) for other in others)
    most = limits(tmp_path, copied, FLOAT32)[Kind.SERVED].most
    assert most is not None and most > 2**-18


def test_the_smallest_dose_is_the_one_that_trying_all_would_find() -> None:
    tried = [2.0**-step for step in range(12)]

    class Judge:
        def passes(self, observed: Mapping[str, float], _: object) -> bool:
            return observed["dose"] < observed["needs"]

    def needing(dose: float) -> Callable[[float], Mapping[str, float]]:
        return lambda given: {"dose": given, "needs": dose}

    needed = [1.0, 2.0**-11, 2.0, 2.0**-5, 2.0**-6, 2.0**-4, 0.0, 0.75]
    faults = [needing(dose) for dose in needed]
    found = sensitivity._smallest_doses(Judge(), faults, tried, None)  # type: ignore[arg-type]
    assert list(found) == [
        min((dose for dose in tried if dose >= need), default=math.inf) for need in needed
    ]

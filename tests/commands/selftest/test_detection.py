"""What a tier detects is counted from the rows of a stored self-test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.commands.selftest import detection, faulty_columns
from conformance.commands.selftest.faults import FAULTS
from conformance.runner.planning.selection import Choice, Selected, select
from conformance.spec.records import Cell, Precision, Side, Verdict
from conformance.spec.records.injected import Ending, Row

ROOT = Path(__file__).parents[3]
BF16 = next(name for name, fault in FAULTS.items() if fault.precision is Precision.BF16)
PLAIN = next(name for name, fault in FAULTS.items() if fault.precision is Precision.FLOAT32)


def row(fault: str, case: str, *, model: str = "m", ending: Ending = Ending.CAUGHT) -> Row:
    return Row(
        fault=fault,
        side=Side.ENGINE,
        variant=fault,
        model=model,
        backend="hf",
        scenario="s",
        case=case,
        dose=0.0,
        place="",
        ending=ending,
        verdict=Verdict.WRONG,
        expected=(),
        right_verdict=True,
    )


def cell(case: str) -> Cell:
    return Cell("m", "hf", "s", case)


FULL = Selected((), (), tuple(map(cell, "abc")))
SMALL = Selected((), (), (cell("a"), cell("b")), frozenset([cell("a")]))


def test_a_fault_is_detected_by_a_cell_of_the_tier_that_caught_it():
    rows = [row(PLAIN, "a"), row(PLAIN, "c"), row("other", "c"), row("third", "b")]
    rows.append(row("missed", "a", ending=Ending.MISSED))
    [found] = detection.detected(rows, FULL, SMALL)
    assert found.full == {PLAIN: 2, "other": 1, "third": 1} and found.missed == ["other"]
    assert (detection.twice(found.full), detection.twice(found.default)) == ({PLAIN}, set())
    assert detection.share([found], ()) == pytest.approx(2 / 3)
    assert detection.share([found], ["other"]) == 1.0
    assert "| m | 3 | 2 | 1, 0 | `other` |" in detection.table([found], ["m"], "run")


def test_a_fault_of_bf16_needs_a_cell_that_runs_in_bf16():
    [found] = detection.detected([row(BF16, "a")], FULL, SMALL)
    assert found.full == {BF16: 1} and not found.default
    [found] = detection.detected([row(BF16, "b")], FULL, SMALL)
    assert found.default == {BF16: 1}


def test_a_cell_that_the_full_tier_does_not_have_counts_for_neither():
    [found] = detection.detected([row(PLAIN, "elsewhere")], FULL, SMALL)
    assert not found.full and not found.default


def test_the_default_tier_has_a_cell_for_every_fault_on_every_kind_of_layer():
    """By the cells that must show each fault, whether or not a self-test has run: the bar of the
    table in docs/selftest.md.
    """
    where = {"manifest": ROOT / "models.yaml", "scenarios": [ROOT / "scenarios"]}
    full, default = select(Choice(tier="full", **where)), select(Choice(**where))
    kinds = detection.kinds_of(Choice(**where))
    models = [model for model in full.models if model.id in kinds]
    assert len(models) == 6
    backends = [column.backend for column in full.columns]
    faults = [fault for fault in FAULTS.values() if not fault.silent]
    rows = [
        _claimed(column, one)
        for model in models
        for column in faulty_columns.columns(faults, model, backends)
        for one in column.cells
    ]
    found = detection.detected(rows, full, default)
    assert detection.share(found) >= detection.BAR, [one.missed for one in found]
    for one in found:
        often = detection.twice(one.full) - set(detection.CHOSEN_BY)
        assert often <= detection.twice(one.default), one.model


def _claimed(column: faulty_columns.FaultyColumn, one: Cell) -> Row:
    """As if the cell had caught what it must catch."""
    caught = row(column.variant.fault.id, one.case, model=one.model)
    return replace(caught, backend=column.backend.id, scenario=one.scenario)

"""How large a missed fault is, is said by the judge of the precision that it was injected in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.commands.selftest import examine, faulty_columns
from conformance.commands.selftest.faults import FAULTS
from conformance.judge.cell.measures.relations import BITWISE
from conformance.runner.store import RunFolder
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Judged,
    Model,
    Outcome,
    Precision,
    Relation,
    Source,
    Status,
    Verdict,
)
from conformance.spec.records.injected import Ending
from tests.known_runs import cell as result

MODEL = Model("llama", "llama", (Source("tiny"),))
SITE = "p0/s0/stream.2"
HF = Backend("hf", "hf")
#: What the judge could have seen, as shares of a row: of a bf16 value and of a float32 one.
SMALLEST = {Precision.BF16: 0.2, Precision.FLOAT32: 1e-5}


def of(cell: Cell, **more: Any) -> CellResult:
    return result(cell.model, cell.backend, cell.scenario, cell.case, **more)


@pytest.mark.parametrize(("error", "ending"), [(0.02, Ending.BELOW), (0.9, Ending.MISSED)])
def test_a_missed_fault_is_measured_by_the_bound_of_its_own_precision(
    tmp_path: Path, error: float, ending: Ending
) -> None:
    [column] = faulty_columns.columns([FAULTS["blurred-above-floor"]], MODEL, (HF,))
    [cell] = column.cells
    run = RunFolder(tmp_path)
    value = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    done = Outcome(Status.OK, prompt_ids=((1, 2),))
    run.write_cell(MODEL.id, column.fault_free_folder, cell.key, done, {SITE: value})
    run.write_cell(MODEL.id, column.folder, cell.key, done, {SITE: value * (1 + error)})
    fault_free = replace(cell, backend="hf")
    by_precision = {
        precision: {
            fault_free.id: of(
                fault_free, observations=(Judged(SITE, Verdict.MATCH, smallest=smallest),)
            )
        }
        for precision, smallest in SMALLEST.items()
    }
    # Of both precisions together float32 leads.
    decided = {cell.id: of(cell), **by_precision[Precision.FLOAT32]}
    verdicts = examine.Verdicts(decided, {}, by_precision)
    [row] = examine.rows(run, [column], verdicts, verdicts)
    assert row.ending is ending
    assert row.size == pytest.approx(error / SMALLEST[Precision.BF16], rel=1e-3)


@pytest.mark.parametrize("held", [True, False], ids=["on a CPU", "where bits are not asked for"])
def test_a_fault_of_bits_is_missed_only_where_the_fault_free_cell_is_held_to_bits(
    tmp_path: Path, held: bool
) -> None:
    backend = Backend("vllm-pp2", "vllm", pipeline=2)
    [column] = faulty_columns.columns([FAULTS["pp-one-bit"]], MODEL, (backend,))
    cell = column.cells[0]
    relations = (Relation(f"{BITWISE} vllm-pp1", holds=True),) if held else ()
    fault_free = of(replace(cell, backend=backend.id), relations=relations)
    by_precision = {column.precision: {fault_free.id: fault_free}}
    verdicts = examine.Verdicts({cell.id: of(cell), fault_free.id: fault_free}, {}, by_precision)
    [row] = examine.rows(RunFolder(tmp_path), [replace(column, cells=(cell,))], verdicts, verdicts)
    assert row.ending is (Ending.MISSED if held else Ending.ABSENT)


@pytest.mark.parametrize("excused", [True, False])
def test_a_fault_that_an_entry_of_known_yaml_would_excuse_is_missed(
    tmp_path: Path, excused: bool
) -> None:
    [column, *_] = faulty_columns.columns([FAULTS["mlp-lost"]], MODEL, (HF,))
    cell = column.cells[0]
    verdicts = examine.Verdicts({cell.id: of(cell, verdict=Verdict.WRONG, reason="zero")}, {})
    asked = []

    def entry(plain: Cell, found: CellResult) -> bool:
        asked.append((plain.backend, found.verdict))
        return excused

    columns = [replace(column, cells=(cell,))]
    [row] = examine.rows(RunFolder(tmp_path), columns, verdicts, verdicts, entry)
    assert row.ending is (Ending.MISSED if excused else Ending.CAUGHT)
    assert row.reason == ("known.yaml excuses it: zero" if excused else "zero")
    assert asked == [("hf", Verdict.WRONG)]

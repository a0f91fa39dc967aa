"""What a faulty column gathered is found by links, wherever its run is named from."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.commands.selftest import faulty_columns
from conformance.commands.selftest.faults import FAULTS
from conformance.runner.scheduling import Planned
from conformance.runner.store import RunFolder
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT, cases_beside
from conformance.spec.records import Backend, Case, Column, Job, Model, Outcome, Source, Status
from conformance.spec.scenario import PAIR

MODEL = Model("llama", "llama", (Source("tiny"),))
VLLM = Backend("vllm-pp1", "vllm")
DONE = Outcome(Status.OK, prompt_ids=((1, 2),))


def test_faults_that_share_a_load_are_parted_so_that_many_processors_have_work() -> None:
    columns = faulty_columns.columns(FAULTS.values(), MODEL, (VLLM,))
    loads = list(faulty_columns._loads(columns))
    assert [column for load in loads for column in load] == list(columns)
    cells = [sum(len(column.cells) for column in load) for load in loads]
    assert len(loads) > 1
    assert min(cells[:-1]) >= faulty_columns.CELLS_OF_A_LOAD
    rest = [sum(len(column.cells) for column in load[:-1]) for load in loads]
    assert max(rest) < faulty_columns.CELLS_OF_A_LOAD
    assert list(faulty_columns._loads([])) == []


def test_it_is_found_in_a_run_of_a_relative_folder_that_was_moved_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("reports/run"))
    [column] = faulty_columns.columns([FAULTS["write-dropped"]], MODEL, (VLLM,))
    cells = {cell.key: Case(cell.scenario, cell.case, ()) for cell in column.cells}
    fault_free = run.group_folder(MODEL.id, column.fault_free_folder).path
    job = Job("vllm", MODEL, Column(VLLM), Path(), fault_free, Path(), tuple(cells.values()))
    by_id = {
        f"{MODEL.id}:{column.fault_free_folder}": Planned(
            "fault_free", lambda: job, faulty_columns.launch(job.column)
        )
    }
    [planned] = faulty_columns._shared_jobs(run, [column], by_id)
    shared = planned.make()
    assert shared is not None
    for case in shared.cases:
        run.write_cell(MODEL.id, shared.folder.name, case.key, DONE, {})
    run.path.rename("elsewhere")
    moved = RunFolder(Path("elsewhere"))
    assert [moved.outcome(MODEL.id, column.folder, key) for key in cells] == [DONE] * len(cells)


def test_beside_a_fault_the_engine_is_asked_for_what_the_judge_reads_of_that_column() -> None:
    """For the prompts of its cells, and the pair by which a column stands behind the reference."""
    [column, *_] = faulty_columns.columns([FAULTS["mlp-lost"]], MODEL, (VLLM,))
    assert column.variant.fault.point.without_block
    own = tuple(Case(cell.scenario, cell.case, ("Rain",)) for cell in column.cells)
    others = (Case("clean", "other", ("A boat",)), Case("clean", "pair", PAIR))
    cases = (*own, *others, *cases_beside((*own, *others)))
    beside = faulty_columns._without_nnsight(column, {case.key: case for case in cases})
    prompts = {case.prompts for case in cases if case.key in beside}
    assert prompts == {("Rain",), PAIR}
    assert len(beside) == 2 * len(WITHOUT_NNSIGHT)

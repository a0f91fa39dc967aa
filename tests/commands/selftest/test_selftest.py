"""Faults inside real workers are found; with a gate broken on purpose they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.commands.selftest import run
from conformance.commands.selftest.controls import CONTROLS
from conformance.commands.selftest.fault import Fault
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faulty_columns import fault_free_cells, plan
from conformance.commands.shared import execution
from conformance.judge.expectations import load_expectations
from conformance.report import html
from conformance.report.sections import selftest as selftest_section
from conformance.report.sections.section import Table
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import manifest
from conformance.spec.records import Column, Side, Thresholds, Verdict
from conformance.spec.records.injected import Ending
from tests import ours

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
SCENARIOS = ROOT / "scenarios"

#: Each gate with a fault that nothing else sees.
SENTINELS = {
    "missing": "save-unbound",
    "structure": "flat-rows",
    "dtype": "pp-dtype-read",
    "finite": "not-finite",
    "aliased": "alias",
    "median": "blurred-above-floor",
    "maximum": "one-token",
    "shift": "logits-shift",
    "zero": "write-not-zero",
    "gain": "write-dropped",
    "leak": "write-leaks",
    "token": "token-other",
    "own logits": "runner-up-bf16",
    "drawn": "top-k-lost",
    "bitwise rows": "bit-beside",
    "prompt ids": "bos",
    "equal within": "one-bit",
    "one stage": "pp-one-bit",
    "integers": "ids-high",
    "refusal": "refused-bf16",
}

#: The gates that only a fault of another model tests: the model, its backends, and the fault.
ELSEWHERE = {
    "massive": ("smollm2-135m", {"hf"}, "massive-off"),
    "prediction": ("bloom", {"hf", "vllm-pp1"}, "known-branch"),
    "rules": ("bloom", {"hf", "vllm-pp1", "vllm-pp2"}, "known-bit"),
    "own input": ("qwen3_next", {"hf", "vllm-pp1"}, "rotary-theta-bf16"),
}


#: The cases injected here, of faults with many. Only the whole self-test has all cases and places.
CASES = {
    "repeat": ("clean.pair", "read_all.pair", "steering.middle-small-one", "ablation.middle"),
    "write-dropped": (
        "ablation.middle",
        "steering.middle-large-all",
        "cross_write.two",
        "cache.all",
    ),
}


def reduced(name: str) -> Fault:
    fault = FAULTS[name]
    cases = CASES.get(name, fault.cases)
    assert set(cases) <= set(fault.cases)
    return replace(fault, cases=cases)


#: Faults between clients: only a backend with several clients injects them.
BETWEEN = ("client-rows", "client-outlives", "client-saves")


class Gathered:
    """A self-test's stored observations and what the sound judge makes of them."""

    def __init__(self, reports: Path, models, backends, faults) -> None:
        known = manifest.load(ROOT / "models.yaml")
        planned = plan(
            [reduced(name) for name in faults],
            [model for model in known.models if model.id in models],
            [backend for backend in known.backends if backend.id in backends],
            most=1,
            gaps=load_expectations().entries,
        )
        folder = execution.begin(
            reports,
            planned.models,
            tuple(map(Column, planned.backends)),
            planned.fault_free,
            scenarios=SCENARIOS,
            thresholds=Thresholds(),
            jobs=2,
        )
        self.whole = run.SelfTestRun(folder, planned, ours.scenarios(), Thresholds())
        assert self.whole.gather(SCENARIOS, cache=cache_folder(), jobs=2, on_event=lambda _: None)
        self.sound = self.whole.judge()
        self.table = self.whole.tabulate(self.sound)

    def only(self, fault: str) -> run.SelfTestRun:
        """The part that injects this fault, with the fault-free cells that it needs."""
        whole = self.whole.plan
        faulty = tuple(one for one in whole.faulty if one.variant.fault.id == fault)
        fault_free = fault_free_cells(faulty, whole.models, whole.backends)
        return replace(self.whole, plan=replace(whole, faulty=faulty, fault_free=fault_free))


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Gathered:
    faults = ["repeat", "noise-only", *SENTINELS.values(), "mlp-lost", "pp-dtype", *BETWEEN]
    reports = tmp_path_factory.mktemp("reports")
    threads = torch.get_num_threads()
    try:
        yield Gathered(reports, {"llama"}, {"hf", "vllm-pp1", "vllm-pp2", "vllm-async"}, faults)
    finally:
        torch.set_num_threads(threads)


def test_every_bar_holds(gathered):
    assert gathered.table.broken == ()
    assert not gathered.table.harness
    assert gathered.table.totals.detected.total > 50


def test_nothing_is_flagged_without_a_fault(gathered):
    quiet = [row for row in gathered.table.rows if row.fault in {"repeat", "noise-only"}]
    assert len(quiet) == 4 * 3 + 4 * 2
    assert {row.ending for row in quiet} == {Ending.QUIET}


def test_a_fault_in_the_real_forward_is_in_the_values_on_every_backend(gathered):
    rows = [row for row in gathered.table.rows if row.fault == "mlp-lost"]
    assert {row.backend for row in rows} == {"hf", "vllm-pp1", "vllm-pp2"}
    assert {row.verdict for row in rows} == {Verdict.WRONG}


def test_a_stage_that_sends_another_precision_is_the_pipelines(gathered):
    [row] = [row for row in gathered.table.rows if row.fault == "pp-dtype"]
    assert (row.verdict, row.backend) == (Verdict.DTYPE, "vllm-pp2")
    assert row.attribution in {Side.PIPELINE, None}


def test_each_gate_has_a_control():
    assert set(CONTROLS) == {*SENTINELS, *ELSEWHERE}


@pytest.mark.parametrize("gate", SENTINELS)
def test_with_this_gate_broken_the_self_test_turns_red(gathered, gate):
    only = gathered.only(SENTINELS[gate])
    assert only.tabulate(gathered.sound).broken == ()
    assert only.blinded(CONTROLS[gate], gathered.sound).broken


@pytest.mark.slow
@pytest.mark.parametrize("gate", ELSEWHERE)
def test_with_a_gate_broken_another_models_self_test_turns_red(tmp_path, gate):
    model, backends, fault = ELSEWHERE[gate]
    real = Gathered(tmp_path, {model}, backends, [fault])
    assert real.table.broken == ()
    assert real.whole.blinded(CONTROLS[gate], real.sound).broken


def test_the_page_shows_the_table(gathered):
    whole = gathered.whole
    whole.write(gathered.table)
    whole.folder.finish()
    results = execution.judge(whole.folder, whole.scenarios, whole.thresholds)
    page = html.write(results, whole.folder.path).read_text(encoding="utf-8")
    assert 'id="selftest"' in page
    assert "Every bar holds" in page
    assert "pp-one-bit" in page
    # Another run's page shows it as well, with a column for each backend.
    section = selftest_section.read(whole.folder.path.parent / "another-run")
    assert section is not None
    titles = [
        cell.title for block in section.blocks if isinstance(block, Table) for cell in block.columns
    ]
    for backend in ("hf", "vllm-pp1", "vllm-pp2"):
        assert any(backend in title for title in titles), titles


def require_between_clients(table, backend):
    rows = [row for row in table.rows if row.fault in BETWEEN]
    assert sorted(row.fault for row in rows) == sorted(BETWEEN)
    assert {row.backend for row in rows} == {backend}
    assert {row.ending for row in rows} == {Ending.CAUGHT}
    assert {row.attribution for row in rows} == {Side.NNSIGHT}
    assert not table.broken and not table.harness and not table.alarms


def test_faults_between_clients_are_found_and_nnsight_is_the_culprit(gathered):
    require_between_clients(gathered.table, "vllm-async")


@pytest.mark.slow
def test_faults_between_clients_of_a_server_are_found(tmp_path):
    between = Gathered(tmp_path, {"llama"}, {"vllm-serve"}, BETWEEN)
    require_between_clients(between.table, "vllm-serve")

"""Unexpected results of a real engine are repeated: an accident is told from a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.commands.gate.decide import check
from conformance.commands.gate.repeat import select_groups, select_needed
from conformance.errors import ExitCode
from conformance.judge.expectations import Finding, KnownGaps
from conformance.runner.store import RunPlan, open_run
from conformance.spec.records import Backend, Cell, Column, Thresholds, Verdict
from tests.known_runs import CELLS, TODAY, cell, results, stored

ROOT = Path(__file__).parents[3]
ACCIDENTS = Path(__file__).parent / "accidents"

STAGES = (Column(Backend("vllm-pp1", "vllm")), Column(Backend("vllm-pp2", "vllm", pipeline=2)))
STAGED = tuple(
    Cell("llama", backend.id, "steering", case) for backend in STAGES for case in ("first", "last")
)


def plan(cells, backends):
    return RunPlan("r", "", "", (), backends, cells, Thresholds())


def test_a_cell_is_repeated_alone_but_with_the_column_it_is_compared_with():
    one = Cell("llama", "vllm-pp2", "steering", "last")
    found = select_needed(plan(STAGED, STAGES), [one])
    assert found == (Cell("llama", "vllm-pp1", "steering", "last"), one)
    other = Cell("llama", "vllm-pp1", "steering", "last")
    assert select_needed(plan(STAGED, STAGES), [other]) == (other,)


def test_in_company_its_whole_group_is_there_and_no_other():
    backends = (Column(Backend("hf", "hf")), Column(Backend("vllm-pp2", "vllm", pipeline=2)))
    found = select_groups(plan(CELLS, backends), [CELLS[0]])
    assert set(found) == {one for one in CELLS if (one.model, one.backend) == ("llama", "hf")}


@pytest.mark.parametrize("beside", [("vllm-pp1",), ()], ids=["and here", "alone"])
def test_what_is_repeated_is_the_column_that_was_unexpected_not_its_backend_here(tmp_path, beside):
    """A backend in an environment, with or without it here: the environment's was unexpected."""
    here, old = [cell("llama", name) for name in beside], cell("llama", "vllm-pp1@old")
    broken = replace(old, verdict=Verdict.WRONG)
    run = stored(tmp_path / "run", results(cells=[*here, broken]))
    asked: list[Cell] = []

    def again(cells):
        asked.extend(select_needed(run.plan(), cells))
        return [results(cells=[old])] * 2

    decision = check(run, KnownGaps(), run.plan().cells, TODAY, repeat=again)
    assert [one.backend for one in asked] == ["vllm-pp1@old"]
    assert decision.counts == Counter({Finding.PASSED: len(here), Finding.FLAKY: 1})
    assert decision.exit_code is ExitCode.OK


def gate(tmp_path, *arguments):
    """The real command on a real engine, with scenarios that have accidents."""
    known = tmp_path / "known.yaml"
    known.write_text("known: []\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "conformance", "gate", "-m", "llama", "-b", "hf"),
            *("--scenarios", str(ACCIDENTS), "--known", str(known), "-j", "1"),
            *("--reports", str(tmp_path / "reports"), *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "CONFORMANCE_TEST_FLAG": str(tmp_path / "flag")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.engine
@pytest.mark.slow
def test_an_accident_is_flaky_and_what_has_a_reason_is_not(tmp_path):
    code, said = gate(tmp_path)
    assert code == 1, said
    summary = open_run(tmp_path / "reports").path / "gate" / "summary.md"
    rows = {
        line.split("|")[4].split(":")[0].strip(): line
        for line in summary.read_text().splitlines()
        if "| llama" in line
    }
    assert "| flaky |" in rows["once"]
    assert "| unexpected |" in rows["lasting"] and "again in 2 of 2" in rows["lasting"]
    # Alone it passes; with its group around it, it fails again.
    assert "| unexpected |" in rows["b\\_company"] and "again in 1 of 2" in rows["b\\_company"]
    repeats = sorted((open_run(tmp_path / "reports").path / "repeats").glob("2*"))
    assert len(repeats) == 2

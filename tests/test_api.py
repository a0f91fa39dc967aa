"""`conformance.assert_same` and `run`: the judge for one's own tensors, and runs from a program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import conformance
from conformance import api
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.records import Verdict

ROOT = Path(__file__).parents[1]
TOKENS, WIDTH, BASELINE_RUNS = 6, 64, 4


@pytest.fixture(scope="module")
def truth():
    return 3.0 * torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def baseline_runs(truth, count=BASELINE_RUNS, *, size=0.004, seed=1):
    """bf16 computations of it, each with errors of its own."""
    noise = torch.Generator().manual_seed(seed)
    scale = size * truth.norm(dim=-1, keepdim=True) / WIDTH**0.5
    return [
        (truth + scale * torch.randn(truth.shape, generator=noise)).bfloat16() for _ in range(count)
    ]


@pytest.fixture(scope="module")
def floor(truth):
    return baseline_runs(truth)


def test_a_baseline_computation_is_the_same(truth, floor):
    [candidate] = baseline_runs(truth, 1, seed=7)
    found = conformance.assert_same(candidate, truth, floor=floor)
    assert found.verdict is Verdict.MATCH
    assert found.worst_ratio < 2
    assert conformance.assert_same(floor[0], truth, floor=floor).verdict is Verdict.EXACT


def test_several_values_are_named_and_the_wrong_one_is_said(truth, floor):
    wrong = (0.5 * truth).bfloat16()
    both = {"hidden": floor[0], "logits": wrong}
    with pytest.raises(conformance.NotSame, match=r"logits: wrong") as caught:
        conformance.assert_same(
            both,
            {"hidden": truth, "logits": truth},
            floor=[{"hidden": one, "logits": one} for one in floor],
        )
    verdicts = {one.site: one.verdict for one in caught.value.judgement.observations}
    assert verdicts == {"p0/s0/hidden": Verdict.EXACT, "p0/s0/logits": Verdict.WRONG}


def test_one_token_of_many_is_enough(truth, floor):
    candidate = baseline_runs(truth, 1, seed=7)[0]
    candidate[3] = candidate[2]
    with pytest.raises(conformance.NotSame, match="tokens 3 of 6"):
        conformance.assert_same(candidate, truth, floor=floor)


def test_drift_fails_unless_it_is_allowed(truth, floor):
    [coarse] = baseline_runs(truth, 1, size=0.012, seed=7)
    assert conformance.compare(coarse, truth, floor=floor).verdict is Verdict.DRIFT
    with pytest.raises(conformance.NotSame, match="drift"):
        conformance.assert_same(coarse, truth, floor=floor)
    assert conformance.assert_same(coarse, truth, floor=floor, drift=True)


def test_in_float32_a_part_in_ten_thousand_is_not_the_same(truth):
    floor = [truth * (1 + 1e-7), truth * (1 - 1e-7)]
    assert conformance.assert_same(truth * (1 + 2e-7), truth, floor=floor)
    with pytest.raises(conformance.NotSame):
        conformance.assert_same(truth * (1 + 1e-4), truth, floor=floor)


def test_complex_numbers_are_judged_whole(truth):
    """As pairs of real ones, and not by their real parts or bit by bit."""
    right = torch.fft.fft(truth, dim=-1)
    near, *floor = (right * (1 + 1e-7 * way) for way in range(1, 6))
    assert conformance.compare(near, right, floor=floor).verdict.passes
    other = torch.complex(right.real, 1.001 * right.imag)
    assert conformance.compare(other, right, floor=floor).verdict is Verdict.WRONG
    total = right.sum()
    assert conformance.compare(total, total, floor=[way.sum() for way in floor]).verdict.passes


def test_what_has_another_dtype_or_shape_is_not_the_same(truth, floor):
    with pytest.raises(conformance.NotSame, match="structure"):
        conformance.assert_same(floor[0][:-1], truth, floor=floor)
    with pytest.raises(conformance.NotSame, match="dtype"):
        conformance.assert_same(floor[0].half(), truth, floor=floor, precision=api.Precision.BF16)
    with pytest.raises(conformance.NotSame, match="missing"):
        conformance.assert_same({}, {"a": truth}, floor=[{"a": one} for one in floor],
                                precision=api.Precision.BF16)  # fmt: skip


def test_nothing_is_judged_without_a_floor(truth, floor):
    with pytest.raises(ConformanceError, match="at least 4 are needed"):
        conformance.assert_same(floor[0], truth, floor=floor[:3])
    with pytest.raises(ConformanceError, match="is not there"):
        conformance.assert_same(floor[0], {"other": truth}, floor=floor)
    with pytest.raises(ConformanceError, match=r"no one precision is that of torch.float16"):
        conformance.assert_same(floor[0].half(), truth, floor=floor)
    with pytest.raises(ConformanceError, match="cannot name a value"):
        conformance.assert_same({"a b": truth}, truth, floor=floor)


def test_what_the_page_shows_runs(capsys):
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- not run.*?-->\n)?```python\n(.*?)```", page, re.DOTALL)
    told = [text for mark, text in blocks if not mark]
    assert told and len(told) < len(blocks)
    torch.manual_seed(0)
    for text in told:
        exec(text, {})
    assert capsys.readouterr().out.startswith("match ")


def test_a_run_that_cannot_start_says_so_in_the_commands_words(tmp_path):
    with pytest.raises(ConformanceError, match="there is no model 'lama'") as caught:
        conformance.run(models=["lama"], folder=tmp_path)
    assert caught.value.code is ExitCode.BAD_INPUT
    with pytest.raises(ConformanceError, match="there is no run"):
        conformance.results(reports=tmp_path)


def test_the_api_is_imported_only_when_it_is_asked_for():
    code = "import conformance, sys; sys.exit('conformance.api' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'asert_same'"):
        _ = conformance.asert_same

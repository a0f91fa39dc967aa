"""The run in ten seconds: what is said, about how many cells, and in which order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from conformance.records import Results, Verdict
from conformance.report import findings, verdict_styles


def test_every_verdict_has_a_look_and_symbols_differ() -> None:
    assert set(verdict_styles.LOOKS) == set(Verdict)
    assert len({look.symbol for look in verdict_styles.LOOKS.values()}) == len(Verdict)


def test_families_agree_with_what_passes_and_what_fails() -> None:
    for verdict, look in verdict_styles.LOOKS.items():
        assert (look.family is verdict_styles.Family.PASS) == verdict.passes
        assert (look.family is verdict_styles.Family.NEUTRAL) == verdict.neutral


@given(st.lists(st.sampled_from(list(Verdict))))
def test_the_worst_of_several_is_a_pass_only_if_all_are(verdicts: list[Verdict]) -> None:
    assert verdict_styles.worst(verdicts).passes == (
        bool(verdicts) and all(v.passes for v in verdicts)
    )
    assert verdict_styles.worst(verdicts).fails == (not verdicts or any(v.fails for v in verdicts))


def test_findings_account_for_every_cell_that_is_no_pass_once(results: Results) -> None:
    found = findings.findings(results)
    assert sum(finding.cells for finding in found) == sum(
        not cell.verdict.passes for cell in results.cells
    )
    assert {finding.verdict for finding in found} == {
        cell.verdict for cell in results.cells if not cell.verdict.passes
    }


def test_one_refusal_shared_by_many_models_is_one_finding(results: Results) -> None:
    cells = tuple(
        replace(cell, verdict=Verdict.UNSUPPORTED, reason=f"no stages (id {i})", diagnosis="")
        for i, cell in enumerate(results.cells)
        if cell.backend == "vllm-pp2"
    )
    (finding,) = findings.findings(replace(results, cells=cells))
    assert len(finding.models) == len({cell.model for cell in cells})
    assert finding.cells == finding.of == len(cells)
    assert finding.where == "every scenario"


def test_different_reasons_are_different_findings(results: Results) -> None:
    first, second = (replace(c, verdict=Verdict.UNSUPPORTED) for c in results.cells[:2])
    cells = (replace(first, reason="no stages"), replace(second, reason="no logits"))
    assert len(findings.findings(replace(results, cells=cells))) == 2


def test_the_same_trouble_on_two_backends_is_one_finding(results: Results) -> None:
    cells = tuple(c for c in results.cells if c.model == "gpt_neox" and c.backend != "hf")
    (finding,) = findings.findings(replace(results, cells=cells))
    assert finding.backends == ("vllm-pp1", "vllm-pp2")
    assert finding.cells == 2
    assert finding.of == len(cells)


def test_an_example_of_several_reasons_says_whose_it_is(results: Results) -> None:
    some = [c for c in results.cells if c.verdict is Verdict.MATCH and c.backend == "hf"]
    first = replace(some[0], verdict=Verdict.WRONG, reason="this", model="a", worst_ratio=9.0)
    second = replace(some[1], verdict=Verdict.WRONG, reason="that", model="b", worst_ratio=3.0)
    (finding,) = findings.findings(replace(results, cells=(first, second)))
    assert finding.text.startswith("a: this")


def test_worst_first_and_expected_last(results: Results) -> None:
    cells = tuple(
        replace(cell, expected="known" if cell.verdict is Verdict.CONTAMINATED else "")
        for cell in results.cells
    )
    found = findings.findings(replace(results, cells=cells))
    ranks = [(f.expected, verdict_styles.ORDER[f.verdict]) for f in found]
    assert ranks == sorted(ranks)
    assert found[-1].verdict is Verdict.CONTAMINATED


def test_where_names_the_scenarios_with_counts_where_not_all_cases_are_off(
    results: Results,
) -> None:
    dropped = next(f for f in findings.findings(results) if f.verdict is Verdict.DROPPED)
    assert dropped.where == "steering 8 of 12"
    wrong = next(f for f in findings.findings(results) if f.verdict is Verdict.WRONG)
    assert wrong.where == "cross_write"


def test_the_summary_of_a_group_says_its_worst_verdict_and_count(results: Results) -> None:
    totals = findings.by_group(results)
    assert totals["llama", "hf"].word == "23 pass"
    assert totals["llama", "vllm-pp2"].word == "8 dropped"
    assert totals["llama", "vllm-pp2"].passed == 15


def test_the_headline_counts_and_an_empty_run_is_not_called_clean(results: Results) -> None:
    text = findings.headline_of(results)
    failed = sum(cell.verdict.fails for cell in results.cells)
    assert f"{failed} fail" in text
    assert "Nothing was run" in findings.headline_of(replace(results, cells=()))

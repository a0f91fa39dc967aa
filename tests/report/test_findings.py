"""The run in ten seconds: what is said, about how many cells, and in which order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.expectations import finding_of
from conformance.report import layouts_and_versions, verdict_styles
from conformance.report.sections import findings
from conformance.spec.records import Finding, Gap, Group, Precision, Results, Verdict

KNOWN, PASSED = Finding.KNOWN, Finding.PASSED


def test_every_verdict_has_a_symbol_and_a_family_that_says_whether_it_passes() -> None:
    looks = verdict_styles.LOOKS
    assert len({look.symbol for look in looks.values()}) == len(Verdict)
    for verdict in Verdict:
        assert (looks[verdict].family is verdict_styles.Family.PASS) == verdict.passes
        assert (looks[verdict].family is verdict_styles.Family.NEUTRAL) == verdict.neutral


@given(st.lists(st.sampled_from(list(Verdict))))
def test_the_worst_of_several_is_a_pass_only_if_all_are(verdicts: list[Verdict]) -> None:
    assert verdict_styles.worst(verdicts).passes == (
        bool(verdicts) and all(v.passes for v in verdicts)
    )
    assert verdict_styles.worst(verdicts).fails == (not verdicts or any(v.fails for v in verdicts))


def test_findings_account_for_every_cell_that_is_no_pass_once(results: Results) -> None:
    found = findings.troubles(results)
    new = [cell for cell in results.cells if finding_of(cell) not in (PASSED, KNOWN)]
    assert sum(trouble.cells for trouble in found) == len(new)
    assert {trouble.verdict for trouble in found} == {cell.verdict for cell in new}


def test_one_refusal_shared_by_many_models_is_one_finding(results: Results) -> None:
    cells = tuple(
        replace(cell, verdict=Verdict.CRASH, attribution=None, diagnosis=f"no stages (id {i})")
        for i, cell in enumerate(results.cells)
        if cell.backend == "vllm-pp2"
    )
    (finding,) = findings.troubles(replace(results, cells=cells))
    assert len(finding.models) == len({cell.model for cell in cells})
    assert finding.cells == finding.of == len(cells)
    assert finding.where == "every scenario"
    first, second = (replace(c, verdict=Verdict.ERROR) for c in results.cells[:2])
    different = (replace(first, diagnosis="no stages"), replace(second, diagnosis="no logits"))
    assert len(findings.troubles(replace(results, cells=different))) == 2


def test_the_same_trouble_on_two_backends_is_one_finding(results: Results) -> None:
    cells = tuple(c for c in results.cells if c.model == "gpt_neox" and c.backend != "hf")
    (finding,) = findings.troubles(replace(results, cells=cells))
    assert finding.backends == ("vllm-pp1", "vllm-pp2")
    assert finding.cells == 2
    assert finding.of == len(cells)


def test_an_example_of_several_reasons_says_whose_it_is(results: Results) -> None:
    some = [c for c in results.cells if c.verdict is Verdict.MATCH and c.backend == "hf"]
    first = replace(some[0], verdict=Verdict.WRONG, reason="this", model="a", worst_ratio=9.0)
    second = replace(some[1], verdict=Verdict.WRONG, reason="that", model="b", worst_ratio=3.0)
    (finding,) = findings.troubles(replace(results, cells=(first, second)))
    assert finding.text.startswith("a: this")


def test_worst_first_and_what_is_known_is_no_trouble(results: Results) -> None:
    cells = tuple(
        replace(cell, expected="known" if cell.verdict is Verdict.CONTAMINATED else "")
        for cell in results.cells
    )
    found = findings.troubles(replace(results, cells=cells))
    ranks = [(t.finding.fine, verdict_styles.ORDER[t.verdict]) for t in found]
    assert ranks == sorted(ranks)
    assert all(trouble.verdict is not Verdict.CONTAMINATED for trouble in found)


def test_where_names_the_scenarios_with_counts_where_not_all_cases_are_off(
    results: Results,
) -> None:
    dropped = next(f for f in findings.troubles(results) if f.verdict is Verdict.DROPPED)
    assert dropped.where == "steering 8 of 12 cells"
    wrong = next(f for f in findings.troubles(results) if f.verdict is Verdict.WRONG)
    assert wrong.where == "cross_write"


def test_the_summary_of_a_group_says_its_worst_verdict_and_count(results: Results) -> None:
    totals = findings.by_group(results)
    assert totals["llama", "hf"].word == "23 pass"
    assert totals["llama", "vllm-pp2"].word == "8 dropped of 23"
    assert totals["llama", "vllm-pp2"].column_word == "something new: 8"
    assert totals["llama", "vllm-pp2"].passed == 15


def test_the_headline_says_what_is_new_and_an_empty_run_is_not_called_clean(
    results: Results,
) -> None:
    new = [cell for cell in results.cells if finding_of(cell) is Finding.UNEXPECTED]
    models = len({cell.model for cell in new})
    assert findings.headline_of(results).startswith(f"{len(new)} unexpected in {models} models. ")
    assert "Nothing was run" in findings.headline_of(replace(results, cells=()))
    quiet = replace(results, cells=tuple(c for c in results.cells if c.verdict.passes))
    text = findings.headline_of(quiet)
    assert text == f"Nothing unexpected. {len(quiet.cells)} cells as expected."


def test_a_column_works_but_for_known_gaps_and_numerics(results: Results) -> None:
    good = tuple(c for c in results.cells if c.verdict.passes and c.backend == "hf")
    known = replace(good[0], verdict=Verdict.WRONG, expected="why", finding=KNOWN, gap=0)
    drift = replace(good[1], verdict=Verdict.DRIFT, finding=Finding.NUMERICS)
    for more, words, but_for in (
        ((), "works", ""),
        ((known,), "works except for known gaps", "known gaps"),
        ((drift,), "works; 1 drift (numerics)", "numerics"),
        (
            (drift, known),
            "works except for known gaps; 1 drift (numerics)",
            "known gaps and numerics",
        ),
    ):
        cells = (*more, *good)
        gaps = (Gap("why", "used", "2026-11-21"),)
        (column,) = layouts_and_versions.backends(
            replace(results, cells=cells, groups=(), gaps=gaps)
        )
        assert (findings.summary(cells).column_word, column.but_for) == (words, but_for)
    summary = findings.summary((known, *good))
    assert summary.word == f"{len(good)} pass, 1 known" and Verdict.WRONG in summary.quiet


GONE = (("one", 12), ("two", 40))


def test_a_gap_that_is_gone_is_named_by_its_line(results: Results) -> None:
    gaps = tuple(Gap(reason, "stale", "2026-11-21", lines=(line,)) for reason, line in GONE)
    some = [cell for cell in results.cells if cell.verdict is Verdict.MATCH][:3]
    cells = tuple(
        replace(cell, finding=Finding.STALE, gap=gap)
        for cell, gap in zip(some, (0, 0, 1), strict=True)
    )
    found = findings.troubles(replace(results, cells=cells, gaps=gaps))
    assert sorted(trouble.text for trouble in found) == [
        f"it passes, though known.yaml:{line} expects that it does not" for _, line in GONE
    ]


def test_what_an_engine_said_is_counted_by_models_not_by_loads() -> None:
    def said(model: str, precision: Precision = Precision.BF16, **identity: object) -> Group:
        return Group(model, "vllm-pp1", precision, identity={"device": "cpu", **identity})

    both = [
        said(model, precision, dtype=precision.value)
        for model in ("llama", "gpt2")
        for precision in (Precision.BF16, Precision.FLOAT32)
    ]
    assert layouts_and_versions.engine(both) == "cpu, bf16; cpu, float32"
    refused = Group("mamba2", "vllm-pp1")
    assert layouts_and_versions.engine([*both, refused]) == (
        "cpu, bf16 (2 of 3 models); cpu, float32 (2 of 3 models)"
    )
    assert layouts_and_versions.engine([said("llama", attention="sdpa")]) == "cpu, attention sdpa"
    kinds = said("llama", attention=["CPU_ATTN", "MLA"])
    assert layouts_and_versions.engine([kinds]) == "cpu, attention CPU_ATTN and MLA"

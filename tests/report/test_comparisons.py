"""Tables that compare: other libraries, and harder forms of models beside their default forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.report.html import render
from conformance.report.sections.comparisons import compare_libraries, compare_variants
from conformance.report.sections.section import Section, Table, Text, texts
from conformance.spec.records import (
    Answer,
    Backend,
    CellResult,
    Column,
    Judged,
    ModelInfo,
    Precision,
    Results,
    Verdict,
)
from tests import known_runs

HF, PP1 = Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm"))
LENS = Column(Backend("lens", "transformer-lens"))
NEAR = (Judged("p0/s0/stream.0", Verdict.MATCH, error=2e-7), Judged("p0/s0/logits", Verdict.MATCH))
FAR = (Judged("p0/s0/stream.0", Verdict.WRONG, error=0.25),)
SOFT = ModelInfo("moe", "mixtral", "tiny", "aa")
HARD = ModelInfo("moe-hard", "mixtral", "tiny", "bb", harder_than="moe")


def cell(
    model: str, backend: str, verdict: Verdict, scenario: str = "read", case: str = "a", **more: Any
) -> CellResult:
    told = {"verdict": verdict, "precision": Precision.FLOAT32, **more}
    return known_runs.cell(model, backend, scenario, case, **told)


def both(model: str, backend: str, numerics: Verdict) -> CellResult:
    return cell(model, backend, Verdict.MATCH, beside=Answer(Precision.BF16, numerics, ""))


def results(*cells: CellResult, **more: Any) -> Results:
    return replace(known_runs.results(), cells=cells, **more)


def rows(section: Section | None) -> dict[str, list[tuple[Text, ...]]]:
    """The entries of the section's table, by the name of the row."""
    assert section is not None
    [table] = [block for block in section.blocks if isinstance(block, Table)]
    return {texts(name)[0].words: [texts(entry) for entry in row] for name, *row in table.rows}


def words(section: Section | None) -> dict[str, tuple[str, ...]]:
    found = rows(section).items()
    return {name: tuple(text.words for entry in row for text in entry) for name, row in found}


def test_what_passes_says_how_near_and_what_fails_how_far_and_where() -> None:
    cells = (
        cell("llama", "lens", Verdict.MATCH, observations=NEAR),
        cell("llama", "lens", Verdict.MATCH, case="b", observations=NEAR[:1]),
        cell("llama", "lens", Verdict.MATCH, "write", observations=NEAR),
        cell("llama", "lens", Verdict.WRONG, "write", "b", observations=FAR, reason="after 0"),
        cell("llama", "lens", Verdict.UNSUPPORTED, "raw", reason="no program"),
        cell("llama", "hf", Verdict.WRONG, observations=FAR),
    )
    assert words(compare_libraries(results(*cells, columns=(HF, LENS)))) == {
        "llama · read": ("2 pass, 2.0e-07",),
        "llama · write": ("wrong 1 of 2, 2.5e-01", "after 0"),
        "llama · raw": ("no program",),
    }
    assert compare_libraries(results(*cells, columns=(HF,))) is None


def test_what_counts_is_the_answer_in_float32() -> None:
    in_float32 = Answer(Precision.FLOAT32, Verdict.MATCH, "", observations=NEAR)
    drifts = {"precision": Precision.BF16, "observations": FAR, "beside": in_float32}
    run = results(cell("llama", "lens", Verdict.DRIFT, **drifts), columns=(HF, LENS))
    assert words(compare_libraries(run)) == {"llama · read": ("1 pass, 2.0e-07",)}


def test_a_hard_variant_stands_beside_its_default_form_in_each_column_and_precision() -> None:
    cells = (
        both("moe", "hf", Verdict.MATCH),
        both("moe-hard", "hf", Verdict.MATCH),
        both("moe-hard", "vllm-pp1", Verdict.DRIFT),
    )
    run = results(*cells, columns=(HF, PP1), models=(SOFT, HARD))
    assert words(compare_variants(run)) == {
        "moe-hard": ("float32: 1 match", "bf16: 1 match", "float32: 1 match", "bf16: 1 drift"),
        "moe, its default form": ("float32: 1 match", "bf16: 1 match"),
    }
    assert rows(compare_variants(run))["moe-hard"][1][1].cell == cells[2].id
    assert 'id="hard-variants"' in render(run)
    assert compare_variants(replace(run, models=(SOFT,))) is None
    alone = replace(run, cells=cells[1:], models=(HARD,))
    assert list(rows(compare_variants(alone))) == ["moe-hard"]

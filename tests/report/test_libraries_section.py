"""The table of other libraries: what each case came to in float32, and where it went wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.records import (
    Answer,
    Backend,
    CellResult,
    Column,
    Judged,
    Precision,
    Results,
    Verdict,
)
from conformance.report.sections.comparisons import compare_libraries as section
from conformance.report.sections.section import Table, texts
from tests import known_runs

HF = Column(Backend("hf", "hf"))
LENS = Column(Backend("lens", "transformer-lens"))
NEAR = (Judged("p0/s0/stream.0", Verdict.MATCH, error=2e-7), Judged("p0/s0/logits", Verdict.MATCH))
FAR = (Judged("p0/s0/stream.0", Verdict.WRONG, error=0.25),)


def cell(
    case: str, verdict: Verdict, scenario: str = "read", backend: str = "lens", **more: Any
) -> CellResult:
    told = {"verdict": verdict, "precision": Precision.FLOAT32, **more}
    return known_runs.cell("llama", backend, scenario, case, **told)


def entries(results: Results) -> dict[str, tuple[str, ...]]:
    made = section(results)
    assert made is not None
    [table] = [block for block in made.blocks if isinstance(block, Table)]
    return {
        texts(name)[0].words: tuple(text.words for entry in row for text in texts(entry))
        for name, *row in table.rows
    }


def results(*cells: CellResult, columns: tuple[Column, ...] = (HF, LENS)) -> Results:
    return replace(known_runs.results(), cells=cells, columns=columns)


def test_a_run_without_libraries_has_no_such_table() -> None:
    only = results(cell("a", Verdict.MATCH, backend="hf"), columns=(HF,))
    assert section(only) is None


def test_what_passes_says_how_near_and_what_fails_how_far_and_where() -> None:
    found = entries(
        results(
            cell("a", Verdict.MATCH, observations=NEAR),
            cell("b", Verdict.MATCH, observations=NEAR[:1]),
            cell("a", Verdict.MATCH, "write", observations=NEAR),
            cell("b", Verdict.WRONG, "write", observations=FAR, reason="first after layer 0"),
            cell("a", Verdict.UNSUPPORTED, "raw", reason="no program"),
            cell("a", Verdict.WRONG, "read", "hf", observations=FAR),
        )
    )
    assert found == {
        "llama · read": ("2 pass, 2.0e-07",),
        "llama · write": ("wrong 1 of 2, 2.5e-01", "first after layer 0"),
        "llama · raw": ("no program",),
    }


def test_what_counts_is_the_answer_in_float32() -> None:
    drifts = cell(
        "a", Verdict.DRIFT, precision=Precision.BF16, observations=FAR,
        beside=Answer(Precision.FLOAT32, Verdict.MATCH, "", observations=NEAR),
    )  # fmt: skip
    assert entries(results(drifts)) == {"llama · read": ("1 pass, 2.0e-07",)}

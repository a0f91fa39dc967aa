"""What a harder form of a model shows, beside its default form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from conformance.records import (
    Answer,
    Backend,
    CellResult,
    Column,
    ModelInfo,
    Precision,
    Results,
    Verdict,
)
from conformance.report.html import render
from conformance.report.sections.comparisons import compare_variants as section
from conformance.report.sections.section import Table, texts
from tests import known_runs

COLUMNS = (Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm")))
SOFT = ModelInfo("moe", "mixtral", "tiny", "aa")
HARD = ModelInfo("moe-hard", "mixtral", "tiny", "bb", harder_than="moe")


def cell(model: str, backend: str, meaning: Verdict, numerics: Verdict, **more: Any) -> CellResult:
    beside = Answer(Precision.BF16, numerics, "")
    told = {"verdict": meaning, "precision": Precision.FLOAT32, "beside": beside, **more}
    return known_runs.cell(model, backend, "read_all", more.pop("case", "all"), **told)


def results(*cells: CellResult, models: tuple[ModelInfo, ...] = (SOFT, HARD)) -> Results:
    return replace(known_runs.results(), cells=cells, columns=COLUMNS, models=models)


CELLS = (
    cell("moe", "hf", Verdict.MATCH, Verdict.MATCH),
    cell("moe-hard", "hf", Verdict.MATCH, Verdict.MATCH),
    cell("moe-hard", "vllm-pp1", Verdict.MATCH, Verdict.DRIFT),
)


def test_it_stands_beside_the_default_form_in_each_column_and_precision() -> None:
    made = section(results(*CELLS))
    assert made is not None
    [table] = [block for block in made.blocks if isinstance(block, Table)]
    rows = {texts(row[0])[0].words: [texts(entry) for entry in row[1:]] for row in table.rows}
    assert list(rows) == ["moe-hard", "moe, its default form"]
    [on_hf, on_vllm] = rows["moe-hard"]
    assert [text.words for text in on_hf] == ["float32: 1 match", "bf16: 1 match"]
    assert [text.words for text in on_vllm] == ["float32: 1 match", "bf16: 1 drift"]
    assert on_vllm[1].cell == CELLS[2].id
    assert rows["moe, its default form"][1] == ()


def test_a_run_without_one_has_no_such_table() -> None:
    assert section(results(CELLS[0], models=(SOFT,))) is None
    alone = section(results(*CELLS[1:], models=(HARD,)))
    assert alone is not None
    [table] = [block for block in alone.blocks if isinstance(block, Table)]
    assert [row[0] for row in table.rows] == ["moe-hard"]


def test_the_page_has_it() -> None:
    assert 'id="hard-variants"' in render(results(*CELLS))

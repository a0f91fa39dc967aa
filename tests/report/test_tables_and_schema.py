"""The same data as tables, and the format that is published."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from conformance.report import schema, table_files
from conformance.spec import records
from conformance.spec.records import Results, Verdict
from tests.report import synthetic


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(schema.results_schema())
    return read


def test_every_field_is_explained_and_no_explanation_is_left_over(
    published: dict[str, Any],
) -> None:
    parts = {**published["$defs"], "Results": published}
    for name, part in parts.items():
        for field, about in part.get("properties", {}).items():
            assert "description" in about, f"{name}.{field} is not explained"
    for name, explained in schema.descriptions().items():
        assert set(explained) == set(parts[name]["properties"]), name


def test_the_footer_is_required_and_comes_last(published: dict[str, Any]) -> None:
    last = ["footer", "gaps", "selection", "details"]
    assert list(published["properties"])[-4:] == last
    assert "footer" in published["required"]


def test_results_are_valid_under_the_schema(published: dict[str, Any], results: Results) -> None:
    """One cell of each verdict and of each selection of fields that hold anything."""
    kinds = {
        (cell.verdict, *(each.name for each in fields(cell) if getattr(cell, each.name))): cell
        for cell in results.cells
    }
    some = replace(results, cells=tuple(kinds.values()))
    jsonschema.validate(json.loads(records.to_json(some)), published)


def test_numbers_without_a_json_word_are_valid_and_other_words_are_not(
    published: dict[str, Any],
) -> None:
    written = json.loads(records.to_json(synthetic.one_cell()))
    for value in ("NaN", "Infinity", "-Infinity", 3):
        written["cells"][0]["worst_ratio"] = value
        jsonschema.validate(written, published)
    written["cells"][0]["worst_ratio"] = "much"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, published)


def test_the_table_has_a_row_a_cell_in_the_runs_order(results: Results) -> None:
    table = pd.DataFrame(table_files.rows(results))
    assert list(table["id"]) == [cell.id for cell in results.cells]
    assert tuple(table.columns) == table_files.COLUMNS
    dropped = table[table["verdict"] == Verdict.DROPPED.value]
    assert (dropped["gain"].abs() < 0.1).all()


def test_both_tables_are_written_and_hold_the_same(tmp_path: Path, results: Results) -> None:
    table_files.write(results, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.csv", "results.parquet"]
    csv = pd.read_csv(
        tmp_path / table_files.CSV, keep_default_na=False, na_values={"worst_ratio": ""}
    )
    parquet = pd.read_parquet(tmp_path / table_files.PARQUET)
    assert (
        list(csv["verdict"]) == list(parquet["verdict"]) == [c.verdict.value for c in results.cells]
    )
    assert csv["seconds"].astype(float).tolist() == pytest.approx(parquet["seconds"].tolist())


def test_an_empty_run_is_an_empty_table_with_columns(tmp_path: Path) -> None:
    table_files.write(synthetic.wrapped(()), tmp_path)
    for table in (
        pd.read_csv(tmp_path / table_files.CSV),
        pd.read_parquet(tmp_path / table_files.PARQUET),
    ):
        assert len(table) == 0
        assert tuple(table.columns) == table_files.COLUMNS

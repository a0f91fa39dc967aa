"""The page says on which models a scenario is not planned, and which part they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from conformance.report.html import of_architecture, render
from conformance.report.sections import not_planned
from conformance.report.sections.section import Section, Table, texts
from conformance.spec.records import MissingPart, Part, Results, Selection


def lacking(results: Results, *missing: MissingPart) -> Results:
    return replace(results, selection=Selection(missing_parts=missing))


def rows(section: Section | None) -> list[list[str]]:
    assert section is not None
    [table] = (block for block in section.blocks if isinstance(block, Table))
    return [[" ".join(t.words for t in texts(entry) if t.words) for entry in r] for r in table.rows]


def test_each_scenario_names_the_missing_part_and_the_models(results: Results) -> None:
    first, *others = (model.id for model in results.models)
    run = lacking(
        results,
        MissingPart("accessors", "mlp", (first,), ("mlp", "mlp_input")),
        MissingPart("router", "experts", tuple(others)),
        MissingPart("long_context", "long", (first, *others)),
    )
    assert rows(not_planned.section(run)) == [
        ["accessors mlp, mlp_input", "an MLP module in each layer", first],
        ["router", "a router and experts", f"all but {first}"],
        ["long_context", "a context of 1,600 tokens", "all models"],
    ]
    assert 'id="not-planned"' in render(run)
    assert not_planned.section(results) is None  # an older run does not say


def test_every_part_is_described() -> None:
    assert set(not_planned.MEANING) == set(get_args(Part))


def test_the_page_of_an_architecture_names_its_own_models_alone(results: Results) -> None:
    one, *_, other = results.models
    run = lacking(results, MissingPart("heads", "heads", (one.id, other.id)))
    own = of_architecture(run, one.architecture)
    assert own.selection.missing_parts == (MissingPart("heads", "heads", (one.id,)),)

"""The page of a run, and one page for each architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.judge.expectations import conclusion_of
from conformance.report import diff, layouts_and_versions
from conformance.report.payload import Parts, parts_of, payload
from conformance.report.render import page
from conformance.report.sections import findings, gaps, not_planned, selftest
from conformance.report.sections.comparisons import compare_libraries, compare_variants
from conformance.report.sections.section import Section
from conformance.report.verdict_styles import FAMILIES, LOOKS
from conformance.spec.records import Results

#: In order: each file uses names of those before it.
SCRIPTS = (
    *("dom.js", "data.js", "route.js", "filter.js", "matrix.js", "list.js"),
    *("model.js", "plots.js", "cell.js", "keys.js", "main.js"),
)


@dataclass(frozen=True, slots=True)
class Besides:
    """Optional parts of a page in addition to its run.

    `tested` is the result of the last self-test, `changes` the differences from another run.
    `sources` are the merged runs, `origin` the run and the original id of each cell. `files` maps
    an architecture to its own page in the same folder. `parts` are precomputed parts of these
    results or of more.
    """

    tested: Section | None = None
    changes: diff.Diff | None = None
    sources: tuple[Results, ...] = ()
    origin: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    parts: Parts | None = None


def publish(results: Results, folder: Path, besides: Besides | None = None) -> Path:
    """Write the page of the whole run and one per architecture; return the former's path."""
    tested = selftest.read(folder)
    besides = besides or Besides()
    # Computed once for the whole page and the architectures': they are most of the work.
    parts = parts_of(results, besides.origin)
    besides = replace(besides, tested=tested, files=files(results), parts=parts)
    for architecture, name in besides.files.items():
        own = of_architecture(results, architecture)
        write(own, folder, replace(besides, files={}), name=name)
    return write(results, folder, besides)


def write(
    results: Results, folder: Path, besides: Besides | None = None, *, name: str = "index.html"
) -> Path:
    """Write one page into `folder` atomically and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    unfinished = path.with_suffix(".unfinished")
    text = render(results, besides or Besides(tested=selftest.read(folder)))
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    unfinished.replace(path)
    return path


def files(results: Results) -> dict[str, str]:
    """Return the file name of every architecture's page, in the order of the run."""
    names: dict[str, str] = {}
    for architecture in dict.fromkeys(cell.architecture for cell in results.cells):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", architecture).strip("._")[:80] or "architecture"
        while f"{name}.html" in {*names.values(), "index.html"}:
            name += "_"
        names[architecture] = f"{name}.html"
    return names


def of_architecture(results: Results, architecture: str) -> Results:
    """Return the run's models of one architecture, and what belongs to them."""
    cells = tuple(cell for cell in results.cells if cell.architecture == architecture)
    models = {cell.model for cell in cells}
    columns = {cell.backend for cell in cells}
    scenarios = {cell.scenario for cell in cells}
    missing = tuple(
        replace(one, models=lacking)
        for one in results.selection.missing_parts
        if (lacking := tuple(model for model in one.models if model in models))
    )
    return replace(
        results,
        cells=cells,
        models=tuple(model for model in results.models if model.id in models),
        columns=tuple(column for column in results.columns if column.id in columns),
        scenarios=tuple(scenario for scenario in results.scenarios if scenario.id in scenarios),
        groups=tuple(group for group in results.groups if group.model in models),
        selection=replace(results.selection, missing_parts=missing),
    )


def render(results: Results, besides: Besides | None = None) -> str:
    """Return the page's text."""
    besides = besides or Besides()
    parts = besides.parts or parts_of(results, besides.origin)
    counted, changes = "", None
    if besides.changes is not None:
        counted, changes = diff.section(besides.changes, {cell.model for cell in results.cells})
    sections = (
        compare_libraries(results),
        compare_variants(results),
        gaps.section(results),
        not_planned.section(results),
        changes,
        besides.tested,
    )
    return page.render(
        "run.html.j2",
        SCRIPTS,
        results=results,
        data=payload(results, parts, besides.files),
        conclusion=conclusion_of(results),
        troubles=findings.troubles(results),
        backends=layouts_and_versions.backends(results),
        facts=layouts_and_versions.run_facts(results, besides.sources),
        before=besides.changes.a if besides.changes else "",
        counted=counted,
        sections=tuple(filter(None, sections)),
        ids={cell.id for cell in results.cells},
        layouts=layouts_and_versions.layouts(results),
        started=layouts_and_versions.when(results.run.started),
        looks=LOOKS,
        families=FAMILIES,
    )

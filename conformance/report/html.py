"""The page: one self-contained file that opens from disk and asks no network for anything.

Jinja writes the frame with autoescape on; the data lies compressed in inert script tags.
A content security policy names the one script by its digest, so markup that arrived in
a model's name or an error's text would not run even if it got through.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from conformance.records import Results
from conformance.report import calibration_section, facts, findings, selftest_section
from conformance.report.changes_section import Changes
from conformance.report.payload import Parts, counts, parts_of, payload
from conformance.report.verdict_styles import FAMILIES, LOOKS
from conformance.report.words import number

#: The order matters: each file uses names of those before it.
SCRIPTS = (
    "dom.js",
    "data.js",
    "route.js",
    "filter.js",
    "matrix.js",
    "list.js",
    "model.js",
    "plots.js",
    "cell.js",
    "keys.js",
    "main.js",
)
STYLES = ("page.css", "parts.css")


@dataclass(frozen=True, slots=True)
class Besides:
    """What a page shows besides its run: all of it may be absent.

    `tested` is what the last self-test found, `changes` what differs from another run.
    `sources` are the runs that were merged, `origin` the run and the id there of each cell.
    `files` maps an architecture to the page of its own beside this one. `parts` are those of
    the results or of more, where they are known.
    """

    tested: selftest_section.Tested | None = None
    changes: Changes | None = None
    sources: tuple[Results, ...] = ()
    origin: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    parts: Parts | None = None


def publish(results: Results, folder: Path, besides: Besides | None = None) -> Path:
    """The page of the whole run, whose path is returned, and beside it one per architecture."""
    tested = selftest_section.read(folder)
    besides = besides or Besides()
    # Both the whole page and an architecture's show them, and they are most of the work.
    parts = parts_of(results, besides.origin)
    besides = replace(besides, tested=tested, files=files(results), parts=parts)
    for architecture, name in besides.files.items():
        own = of_architecture(results, architecture)
        models = {model.id for model in own.models}
        changes = besides.changes.of(models) if besides.changes else None
        write(own, folder, replace(besides, changes=changes, files={}), name=name)
    return write(results, folder, besides)


def write(
    results: Results, folder: Path, besides: Besides | None = None, *, name: str = "index.html"
) -> Path:
    """Write one page into `folder` and return its path; the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    unfinished = path.with_suffix(".unfinished")
    text = render(results, besides or Besides(tested=selftest_section.read(folder)))
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    unfinished.replace(path)
    return path


def files(results: Results) -> dict[str, str]:
    """The file name of every architecture's own page, in the order of the run."""
    found: dict[str, str] = {}
    for architecture in dict.fromkeys(cell.architecture for cell in results.cells):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", architecture).strip("._")[:80] or "architecture"
        while f"{name}.html" in {*found.values(), "index.html"}:
            name += "_"
        found[architecture] = f"{name}.html"
    return found


def of_architecture(results: Results, architecture: str) -> Results:
    """The run's models of one architecture, and what belongs to them."""
    cells = tuple(cell for cell in results.cells if cell.architecture == architecture)
    models = {cell.model for cell in cells}
    columns = {cell.backend for cell in cells}
    asked = {cell.scenario for cell in cells}
    return replace(
        results,
        cells=cells,
        models=tuple(model for model in results.models if model.id in models),
        backends=tuple(backend for backend in results.backends if backend.id in columns),
        scenarios=tuple(scenario for scenario in results.scenarios if scenario.id in asked),
        groups=tuple(group for group in results.groups if group.model in models),
    )


def render(results: Results, besides: Besides | None = None) -> str:
    """The page's text."""
    besides = besides or Besides()
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"
    style = "\n".join(map(_asset, STYLES))
    parts = besides.parts or parts_of(results, besides.origin)
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            results=results,
            data=payload(results, parts, besides.files),
            script=Markup(script),  # noqa: S704 - our own files
            style=Markup(style),  # noqa: S704
            script_digest=_digest(script),
            style_digest=_digest(style),
            headline=findings.headline_of(results),
            findings=findings.findings(results),
            backends=facts.backends(results),
            facts=facts.run_facts(results, besides.sources),
            calibration=results.environment.calibration,
            calibrated=calibration_section,
            tested=besides.tested,
            changes=besides.changes,
            ids={cell.id for cell in results.cells},
            layouts=facts.layouts(results),
            started=facts.when(results.run.started),
            counts=counts(results.cells),
            looks=LOOKS,
            families=FAMILIES,
        )
    )


@cache
def _templates() -> jinja2.Environment:
    """Compiled once, whatever the number of pages."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment


def _asset(name: str) -> str:
    return resources.files("conformance.report").joinpath("assets", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

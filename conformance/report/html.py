"""The page: one self-contained file that opens from disk and asks no network for anything.

Jinja writes the frame with autoescape on; the data lies compressed in inert script tags.
A content security policy names the one script by its digest, so markup that arrived in
a model's name or an error's text would not run even if it got through.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from conformance.records import Results
from conformance.report import calibrated, facts, findings, selftested
from conformance.report.looks import FAMILIES, LOOKS
from conformance.report.payload import counts, payload
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


def write(results: Results, folder: Path, *, name: str = "index.html") -> Path:
    """Write the page into `folder` and return its path; the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    unfinished = path.with_suffix(".unfinished")
    text = render(results, selftested.read(folder))
    unfinished.write_text(text, encoding="utf-8", errors="replace")
    unfinished.replace(path)
    return path


def render(results: Results, tested: selftested.Tested | None = None) -> str:
    """The page's text. `tested` is what the last self-test found."""
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"
    style = "\n".join(map(_asset, STYLES))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template("page.html.j2").render(
        results=results,
        data=payload(results),
        script=Markup(script),  # noqa: S704 - our own files
        style=Markup(style),  # noqa: S704
        script_digest=_digest(script),
        style_digest=_digest(style),
        headline=findings.headline_of(results),
        findings=findings.findings(results),
        backends=facts.backends(results),
        facts=facts.run_facts(results),
        calibration=results.environment.calibration,
        calibrated=calibrated,
        tested=tested,
        layouts=facts.layouts(results),
        started=facts.when(results.run.started),
        counts=counts(results.cells),
        looks=LOOKS,
        families=FAMILIES,
    )


def _asset(name: str) -> str:
    return resources.files("conformance.report").joinpath("assets", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

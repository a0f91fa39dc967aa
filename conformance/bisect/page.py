"""A report as one HTML file that needs no network."""

from __future__ import annotations

import jinja2

from conformance.bisect.report import Report
from conformance.bisect.show import cost, parts


def page(report: Report) -> str:
    """The page's text; whatever a run says is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.bisect"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("bisect.html.j2")
    tables = [part for part in parts(report) if part[0] != "Trials"]
    return template.render(report=report, tables=tables, cost=cost(report))

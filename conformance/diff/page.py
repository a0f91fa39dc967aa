"""The differences as one HTML file that needs no network."""

from __future__ import annotations

import jinja2

from conformance.diff.compare import Diff
from conformance.diff.text import headline, parts


def page(diff: Diff) -> str:
    """The page's text; whatever a run says is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.diff"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("diff.html.j2")
    return template.render(diff=diff, headline=headline(diff), parts=list(parts(diff)))

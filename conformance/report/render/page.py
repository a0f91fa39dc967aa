"""Render sections as one HTML file that opens from disk without network access.

Jinja runs with autoescape. A content security policy allows only the embedded stylesheets and
script, by digest: markup from a model's name or an error text would not run even if it got through.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from conformance.report.sections.section import Document, texts
from conformance.report.words import number

STYLES = ("page.css", "parts.css")


def document(page: Document) -> str:
    """Render a page that needs no script."""
    return render("document.html.j2", document=page)


def render(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """Render a template with the stylesheet and these scripts embedded, in order."""
    style = "\n".join(map(_asset, STYLES))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, scripts)) + "\n})();\n"
    return (
        _templates()
        .get_template(template)
        .render(
            script=Markup(script),  # noqa: S704 - our own files
            style=Markup(style),  # noqa: S704
            script_digest=digest(script),
            style_digest=digest(style),
            **values,
        )
    )


@cache
def _templates() -> jinja2.Environment:
    """Compile the templates once for all pages."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.report.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "texts": texts, "kind": lambda x: type(x).__name__}
    return environment


def _asset(name: str) -> str:
    return resources.files("conformance.report.render").joinpath("assets", name).read_text("utf-8")


def digest(text: str) -> str:
    """Return a script's or stylesheet's hash as a content security policy needs it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""The cases that are not planned, because they need a part that a model lacks."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.report.sections.section import Note, Section, Table, Text, columns
from conformance.spec.records import MissingPart, Results

#: What a model without the part lacks.
MEANING: dict[str, str] = {
    "embedding": "an embedding module",
    "attention": "an attention module in each layer",
    "heads": "attention heads",
    "qkv": "query, key and value of each head",
    "mlp": "an MLP module in each layer",
    "norm": "a final norm",
    "head": "an output layer",
    "experts": "a router and experts",
    "long": "a context of 1,600 tokens",
}


def section(results: Results) -> Section | None:
    """Return the missing parts by scenario; None if nothing is left out, or the run is older."""
    planned = [model.id for model in results.models]
    rows = tuple(
        (
            (one.scenario, Text(", ".join(one.cases), quiet=True)),
            MEANING.get(one.part, one.part),
            _models(one, planned),
        )
        for one in results.selection.missing_parts
    )
    if not rows:
        return None
    about = Note("A scenario, or the listed cases of it, needs a part that these models lack.")
    table = Table(columns("scenario", "missing part", "models"), rows, first=len(rows))
    return Section("Not planned", (about, table), "not-planned")


def _models(missing: MissingPart, planned: Iterable[str]) -> str:
    others = [model for model in planned if model not in missing.models]
    if len(others) >= len(missing.models):
        return ", ".join(missing.models)
    return f"all but {', '.join(others)}" if others else "all models"

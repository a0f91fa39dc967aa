"""A sweep as JSON, as a table of its cells, and as one page that needs no network."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2

from conformance.records import Results, to_json
from conformance.report.verdict_styles import FAMILIES, LOOKS
from conformance.store import RunFolder
from conformance.store.files import write_text
from conformance.sweep.parts import Mark, Trend
from conformance.sweep.points import FILE, Point, Swept, read
from conformance.sweep.trend import split, together, trend

PAGE, JSON, TABLE = "sweep.html", "sweep.json", "sweep.csv"


def publish(run: RunFolder, results: Results, swept: Swept) -> Path:
    """Write all three beside the run's own page; returns the page's path."""
    found = trend(results, swept, bits(run, results))
    write_text(run.path / JSON, to_json(found, indent=1))
    write_text(run.path / TABLE, table(results, swept))
    write_text(run.path / PAGE, render(found))
    return run.path / PAGE


def publish_if_swept(run: RunFolder, results: Results) -> Path | None:
    """The same for a run that may be no sweep: then there is nothing to write."""
    return publish(run, results, read(run)) if (run.path / FILE).is_file() else None


def bits(run: RunFolder, results: Results) -> dict[str, str]:
    """A digest of every cell's observations: names, types, shapes and bits of all of them."""
    return dict(_bits(run, results))


def _bits(run: RunFolder, results: Results) -> Iterator[tuple[str, str]]:
    for cell in results.cells:
        folder = run.group_folder(cell.model, cell.backend).cell(f"{cell.scenario}.{cell.case}")
        path = folder / "observations.safetensors"
        if path.is_file():
            yield cell.id, _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    """Of what a safetensors file holds, however its header is written."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    found = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        entry = header[name]
        low, high = entry["data_offsets"]
        found.update(f"{name} {entry['dtype']} {entry['shape']}\0".encode())
        found.update(content[start + low : start + high])
    return found.hexdigest()


def table(results: Results, swept: Swept) -> str:
    """One line a cell, with the versions that were asked for."""
    asked = {point.name: point.asked for point in swept.points}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("model", "architecture", "backend", *swept.axes, "scenario", "case", "verdict"),
            *("worst_ratio", "diagnosis", "reason"),
        ]
    )
    for cell in results.cells:
        backend, point = split(cell.backend)
        versions = [asked.get(point, {}).get(package, "") for package in swept.axes]
        ratio = "" if cell.worst_ratio is None else f"{cell.worst_ratio:.6g}"
        writer.writerow(
            [
                *(cell.model, cell.architecture, backend, *versions, cell.scenario, cell.case),
                *(cell.verdict.value, ratio, cell.diagnosis, cell.reason),
            ]
        )
    return text.getvalue()


def render(found: Trend) -> str:
    """The page's text; whatever a run says is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.sweep"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    models = list(dict.fromkeys(row.model for row in found.rows))
    return environment.get_template("sweep.html.j2").render(
        trend=found,
        models=[_Model(found, name) for name in models],
        looks=LOOKS,
        families=FAMILIES,
        used=[verdict for verdict in LOOKS if found.verdicts.get(verdict.value)],
        heads_of=heads(found.points, list(found.axes)),
    )


def heads(points: Sequence[Point], packages: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
    """For each package its versions over the columns, each with how many columns it spans."""
    found: dict[str, list[tuple[str, int]]] = {}
    for at, package in enumerate(packages):
        names = packages[: at + 1]
        versions = [tuple(point.asked[name] for name in names) for point in points]
        found[package] = [(one[-1], len(list(group))) for one, group in itertools.groupby(versions)]
    return found


class _Model:
    """One model's part of the page: its rows by backend."""

    def __init__(self, found: Trend, name: str) -> None:
        self.name = name
        rows = [row for row in found.rows if row.model == name]
        self.architecture = rows[0].architecture
        backends = dict.fromkeys(row.backend for row in rows)
        self.backends = {
            backend: [row for row in rows if row.backend == backend] for backend in backends
        }
        self.engines = {one.backend: one.said for one in found.engines if one.model == name}
        self.changes = [change for change in found.changes if change.model == name]

    def whole(self, backend: str) -> list[Mark]:
        """One backend's scenarios taken together, point by point."""
        columns = zip(*(row.marks for row in self.backends[backend]), strict=True)
        return [together(marks) for marks in columns]

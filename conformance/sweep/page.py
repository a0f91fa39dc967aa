"""A sweep as JSON, as a table of its cells, and as one page that needs no network."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from conformance import loose_json
from conformance.inputs import usable
from conformance.records import Results, to_json
from conformance.report.render import page
from conformance.store import RunFolder
from conformance.store.files import damaged, write_text
from conformance.sweep.document import document
from conformance.sweep.points import FILE, Swept, read
from conformance.sweep.trend import places, trend

PAGE, JSON, TABLE = "sweep.html", "sweep.json", "sweep.csv"


def publish(run: RunFolder, results: Results, swept: Swept) -> Path:
    """Write all three beside the run's own page; returns the page's path."""
    swept_trend = trend(results, swept, bits(run, results))
    write_text(run.path / JSON, to_json(swept_trend, indent=1))
    write_text(run.path / TABLE, table(results, swept))
    write_text(run.path / PAGE, page.document(document(swept_trend)))
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
            yield cell.id, _digest(path)


def _digest(path: Path) -> str:
    """Of what a safetensors file holds, however its header is written. Raises ConformanceError for
    one that is damaged.
    """
    if why := usable.safetensors(path):
        raise damaged(path, why)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = loose_json.parsed(content[8:start])
    whole = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        entry = header[name]
        low, high = entry["data_offsets"]
        whole.update(f"{name} {entry.get('dtype')} {entry.get('shape')}\0".encode())
        whole.update(content[start + low : start + high])
    return whole.hexdigest()


def table(results: Results, swept: Swept) -> str:
    """One line a cell, with the versions that were asked for."""
    versions_of = {point.name: point.asked for point in swept.points}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("model", "architecture", "backend", *swept.axes, "scenario", "case", "verdict"),
            *("worst_ratio", "diagnosis", "reason"),
        ]
    )
    where = places(results)
    for cell in results.cells:
        backend, point = where[cell.backend]
        versions = [versions_of.get(point, {}).get(package, "") for package in swept.axes]
        ratio = "" if cell.worst_ratio is None else f"{cell.worst_ratio:.6g}"
        writer.writerow(
            [
                *(cell.model, cell.architecture, backend, *versions, cell.scenario, cell.case),
                *(cell.verdict.value, ratio, cell.diagnosis, cell.reason),
            ]
        )
    return text.getvalue()

"""The page's data: a small index that is read at once, and a part per group for later.

The index is columns of numbers that point into lists of names, so ten thousand cells cost
kilobytes. The details of a group's cells are stored as columns too, and decompressed when one of
them is opened.
"""

from __future__ import annotations

import base64
import gzip
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from conformance.judge.expectations import finding_of
from conformance.report import figures
from conformance.report.figures import short
from conformance.report.grouping import group_by
from conformance.report.sections.gaps import title
from conformance.report.verdict_styles import FAMILIES, LOOKS
from conformance.report.words import Context, line, reasoning
from conformance.runner.processes.parallel import side_by_side, worth
from conformance.spec.records import (
    CellResult,
    Finding,
    Group,
    Judged,
    Results,
    Thresholds,
    Verdict,
)

#: How much of a long text the page keeps at both ends; it marks the omission.
HEAD, TAIL = 8_000, 56_000
#: How many of the other precision's observations are kept, at least and at most.
_FEW, _MANY = 3, 60

#: Packing a cell takes a few times less than judging it: for few cells no process is started.
_LIGHTER = 5

#: The order in which readers want them: new, then drifting, then known.
CONCERN: Mapping[Finding, int] = {
    **dict.fromkeys(Finding, 0),
    Finding.NUMERICS: 1,
    Finding.KNOWN: 2,
    Finding.PASSED: 3,
}

#: Packed details of the cells, by model and backend.
Parts = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Payload:
    """`index` and `parts`: UTF-8 JSON, compressed with gzip and encoded in base64."""

    index: str
    parts: tuple[str, ...]


def payload(
    results: Results, parts: Parts, files: Mapping[str, str] = MappingProxyType({})
) -> Payload:
    """Build the page's data; `parts` come from `parts_of`, `files` are the architectures' pages."""
    members = _by_column(results.cells)
    index = _index(results, members) | {"files": dict(files)}
    return Payload(pack(index), tuple(parts[key] for key in members))


def parts_of(
    results: Results, origin: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> Parts:
    """Pack the details of all cells; `origin` is the run and id of cells of merged runs."""
    calls = [
        (
            results.run.id,
            results.environment.thresholds,
            [group for group in results.groups if group.model == model],
            cells,
            origin,
        )
        for model, cells in group_by(results.cells, lambda cell: cell.model).items()
    ]
    if count := worth(len(results.cells) // _LIGHTER):
        parts_by_model = [*side_by_side(_parts_of_model, calls, processes=count)]
    else:
        parts_by_model = [_parts_of_model(*call) for call in calls]
    return {key: part for of_model in parts_by_model for key, part in of_model.items()}


def _parts_of_model(
    run: str,
    thresholds: Thresholds,
    groups: Sequence[Group],
    cells: Sequence[CellResult],
    origin: Mapping[str, tuple[str, str]],
) -> dict[tuple[str, str], str]:
    by_backend = {(group.backend, group.precision): group for group in groups}
    siblings = group_by(cells, lambda cell: (cell.scenario, cell.case))
    parts = {}
    for key, members in _by_column(cells).items():
        group = by_backend.get((key[1], members[0].precision))
        details = []
        for cell in members:
            context = Context(thresholds, group, tuple(siblings[cell.scenario, cell.case]))
            details.append(_detail(cell, context, origin.get(cell.id, (run, cell.id))))
        log = clip(group.log_tail if group else "")
        parts[key] = pack({"log": log} | _columns(details))
    return parts


def _by_column(cells: Iterable[CellResult]) -> dict[tuple[str, str], list[CellResult]]:
    return group_by(cells, lambda cell: (cell.model, cell.backend))


def _columns(details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Arrange the details of a group's cells as columns, which gzip compresses a fifth better."""
    rows = [row for detail in details for row in detail["observations"]]
    cells = {name: [detail[name] for detail in details] for name in details[0]}
    cells["observations"] = [len(detail["observations"]) for detail in details]
    return {"cells": cells, "rows": [list(column) for column in zip(*rows, strict=True)]}


def pack(value: Any) -> str:
    """Encode JSON as gzip in base64, whose alphabet cannot close or begin a tag."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # A lone surrogate (a log cut within a character) cannot be encoded in UTF-8.
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)).decode()


def clip(text: str) -> str:
    if len(text) <= HEAD + TAIL:
        return text
    left_out = len(text) - HEAD - TAIL
    return f"{text[:HEAD]}\n\n… {left_out:,} characters left out …\n\n{text[-TAIL:]}"


def plain(value: Any) -> Any:
    """Convert values of open mappings to what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return short(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _column(results: Results, name: str) -> dict[str, Any]:
    """Return a column's backend and where it ran, under the column's name."""
    for column in results.columns:
        if column.id == name:
            facts = asdict(column)
            return dict(plain({**facts.pop("backend"), **facts, "id": name}))
    return {"id": name}


def _index(
    results: Results, members: Mapping[tuple[str, str], Sequence[CellResult]]
) -> dict[str, Any]:
    groups = {(group.model, group.backend): group for group in results.groups}
    cells = [cell for group in members.values() for cell in group]
    architecture = {model.id: model.architecture for model in results.models}
    architecture |= {
        cell.model: cell.architecture for cell in cells if cell.model not in architecture
    }
    facts = {model.id: asdict(model) for model in results.models}
    models = _names([*architecture], (cell.model for cell in cells))
    backends = _names([column.id for column in results.columns], (cell.backend for cell in cells))
    scenarios = _names([s.id for s in results.scenarios], (cell.scenario for cell in cells))
    cases = _names([], (cell.case for cell in cells))
    verdicts = list(LOOKS)
    findings = {finding: index for index, finding in enumerate(CONCERN)}
    looks: dict[Verdict | None, int] = {verdict: i for i, verdict in enumerate(verdicts)}
    meaning = {scenario.id: asdict(scenario) for scenario in results.scenarios}
    return {
        "verdicts": [
            [v.value, LOOKS[v].family.value, LOOKS[v].symbol, LOOKS[v].meaning] for v in verdicts
        ],
        "findings": [[finding.value, concern] for finding, concern in CONCERN.items()],
        "gaps": [title(gap) for gap in results.gaps],
        "families": {name.value: words for name, words in FAMILIES.items()},
        "thresholds": plain(asdict(results.environment.thresholds)),
        "environment": plain(results.environment.versions),
        "models": [
            plain(facts.get(m, {})) | {"id": m, "architecture": architecture[m]} for m in models
        ],
        "backends": [_column(results, name) for name in backends],
        "scenarios": [plain(meaning.get(name, {})) | {"id": name} for name in scenarios],
        "cases": list(cases),
        "groups": [
            [models[m], backends[b], len(cells), _about(groups.get((m, b)))]
            for (m, b), cells in members.items()
        ],
        "others": [
            [models[group.model], group.backend, _about(group)]
            for key, group in groups.items()
            if key not in members and group.model in models
        ],
        "cells": {
            "scenario": [scenarios[cell.scenario] for cell in cells],
            "case": [cases[cell.case] for cell in cells],
            "verdict": [looks[cell.verdict] for cell in cells],
            "ratio": [figures.ratio(cell.worst_ratio) for cell in cells],
            "seconds": [short(cell.seconds) for cell in cells],
            "finding": [findings[finding_of(cell)] for cell in cells],
            "float32": [looks.get(cell.meaning, -1) for cell in cells],
            "bf16": [looks.get(cell.numerics, -1) for cell in cells],
            "gap": {i: cell.gap for i, cell in enumerate(cells) if cell.gap is not None},
            "line": [line(cell) for cell in cells],
            "id": {i: cell.id for i, cell in enumerate(cells) if cell.id != _plain_id(cell)},
        },
    }


def _names(first: Sequence[str], then: Iterable[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(dict.fromkeys([*first, *then]))}


def _plain_id(cell: CellResult) -> str:
    return f"{cell.scenario}[{cell.model}-{cell.backend}-{cell.case}]"


def _about(group: Group | None) -> dict[str, Any]:
    if group is None:
        return {}
    hidden = ("model", "backend", "log_tail")
    about = {key: value for key, value in asdict(group).items() if key not in hidden}
    return {**plain(about), "boundaries": list(figures.boundaries(group))}


def repro_command(run: str, cell: str, where: Sequence[str] = ()) -> str:
    """Return the command that writes a script which reproduces the cell without the harness.

    `where` are the arguments that find the run.
    """
    return shlex.join(["conformance", "repro", cell, "--run", run, *where])


def _detail(cell: CellResult, context: Context, origin: tuple[str, str]) -> dict[str, Any]:
    return {
        "precision": cell.precision.value,
        "beside": _beside(cell),
        "reason": clip(cell.reason) if cell.beside else "",
        "words": [clip(text) for text in reasoning(cell, context)],
        "command": cell.command,
        "repro": repro_command(*origin),
        "detail": clip(cell.detail),
        "layers": plain(cell.layers),
        "prompts": [list(ids) for ids in cell.prompt_ids],
        "relations": [[r.name, r.holds, clip(r.detail)] for r in cell.relations],
        "observations": [_row(observation) for observation in cell.observations],
        "series": figures.series(cell),
        "gains": figures.gains(cell),
        "worst": cell.worst_site,
    }


def _beside(cell: CellResult) -> dict[str, Any] | None:
    """Return the other precision's answer: what does not pass there, and a few that do."""
    answer = cell.beside
    if answer is None:
        return None
    ordered = figures.causes_first(answer.observations)
    off = sum(not observation.verdict.passes for observation in ordered)
    rows = ordered[: min(max(off, _FEW), _MANY)]
    return {
        "precision": answer.precision.value,
        "reason": clip(answer.reason),
        "diagnosis": clip(answer.diagnosis),
        "detail": clip(answer.detail),
        "observations": [_row(observation) for observation in rows],
        "left": len(ordered) - len(rows),
    }


def _row(observation: Judged) -> list[Any]:
    """Return the entries in the order of the page's table; `extra` is last."""
    gain = observation.gain
    return [
        observation.site,
        observation.verdict.value,
        figures.ratio(observation.q_med),
        figures.ratio(observation.q_max),
        *map(
            short, (observation.spread, observation.error, observation.floor, observation.smallest)
        ),
        None if gain is None else [short(gain.g), short(gain.h), short(gain.sigma)],
        list(observation.shape),
        observation.dtype,
        clip(observation.message),
        plain(observation.extra),
    ]

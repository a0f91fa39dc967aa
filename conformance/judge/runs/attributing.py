"""Attribute the failed cells of a stored run, using what the engines did without nnsight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from conformance.engines import LIBRARIES
from conformance.judge.cell.attribution import Plain, attribute, by_harness
from conformance.spec.builtin.engine_alone import COMPUTED, GENERATED
from conformance.spec.records import Attribution, CellResult, Column, Side, Site, Verdict

#: Verdicts without a comparable generation; without an error, the process just ended.
_ENDED = frozenset({Verdict.CRASH, Verdict.TIMEOUT, Verdict.ERROR, Verdict.MISSING})

#: Judges what a cell's engine did without nnsight; results by scenario name.
Alone = Callable[[CellResult], Mapping[str, CellResult]]


def attribute_failures(
    cells: Mapping[str, CellResult],
    columns: Sequence[Column],
    alone: Alone,
    confirmed: Callable[[str], str] = lambda _: "",
) -> dict[str, CellResult]:
    """Return the cells of one model, each failed one with its attribution.

    `alone` is called only for engines with a failed cell. `confirmed` takes a column's id and
    returns why the reference can be trusted although that column's engine differs from it without
    nnsight, or "" if nothing confirms it. In a library's cell neither nnsight nor vLLM takes part.
    """
    by_id = {column.id: column for column in columns}
    engines = {column.id: column.engine for column in columns}
    results = dict(cells)
    for cell in cells.values():
        if not cell.verdict.fails or cell.attribution is not None:
            continue
        column = by_id[cell.backend]
        if column.engine in LIBRARIES:
            words = "the library, or how this project's adapter calls it"
            attribution = by_harness(cell) or Attribution(Side.UNDECIDED, words)
            results[cell.id] = replace(cell, attribution=attribution)
            continue
        single_stage = find_one_stage(column, columns)
        plain = plain_of(alone(cell))
        if plain is not None and not plain.agrees:
            plain = replace(plain, confirmed=confirmed(column.id))
        blamed = attribute(
            cell,
            cells.values(),
            one_stage=single_stage.id if single_stage else "",
            stages=column.pipeline,
            plain=plain,
            engines=engines,
        )
        results[cell.id] = replace(cell, attribution=blamed)
    return results


def find_one_stage(column: Column, columns: Iterable[Column]) -> Column | None:
    """Return the one-stage column that differs from this one in nothing else."""
    alike = attrgetter("engine", "tensor", "options", "environment", "interpreter", "machine")
    others = (other for other in columns if other.pipeline == 1 != column.pipeline)
    return next((other for other in others if alike(other) == alike(column)), None)


def plain_of(alone: Mapping[str, CellResult]) -> Plain | None:
    """Return what an engine's runs without nnsight say about its failed cells.

    It agrees with the reference if everything that could be judged does, including its generation.
    """
    known = {name: plain for name, one in alone.items() if (plain := _witness(one)) is not None}
    wrong = [plain for plain in known.values() if not plain.agrees]
    if wrong:
        return wrong[0]
    if GENERATED.name not in known:
        return None
    words = " and ".join(plain.evidence for plain in known.values())
    return Plain(True, f"{words} within the noise of the reference", streams=COMPUTED.name in known)


def _witness(alone: CellResult) -> Plain | None:
    """Return what a run without nnsight says: nothing if it could not be made, or drifts.

    Without observations it disagrees if the engine raised, or its process just ended.
    """
    verdict = alone.verdict
    if alone.harness or verdict.neutral or verdict is Verdict.DRIFT:
        return None
    if not alone.observations:
        culprit = attribute(alone, ())
        raised = culprit is not None and culprit.side is Side.ENGINE
        if verdict not in _ENDED or (verdict is Verdict.ERROR and not raised):
            return None
        evidence = f"its own generation ends in {verdict}: {alone.reason}"
        return Plain(agrees=False, evidence=evidence)
    sites = [Site.parse(judged.site) for judged in alone.observations]
    tokens = sum(site.name == "tokens" for site in sites)
    layers = len({site.layer for site in sites})
    counted = f"streams, seen by plain hooks after {layers} layers,"
    if tokens:
        counted = f"{tokens} token{'s' * (tokens > 1)} and their log-probabilities"
    words = f"its own {counted} are"
    if verdict.passes:
        return Plain(agrees=True, evidence=words)
    return Plain(agrees=False, evidence=f"{words} {verdict}: {alone.reason}")

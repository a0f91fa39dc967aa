"""Attribute the failed cells of a stored run, using what the engines did without nnsight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from conformance.engines import LIBRARIES
from conformance.judge.cell.attribution import Plain, attribute
from conformance.spec.builtin.engine_alone import COMPUTED, GENERATED
from conformance.spec.records import Attribution, CellResult, Column, Judged, Side, Site, Verdict

#: Verdicts without a comparable generation; without an error, the process just ended.
_ENDED = frozenset({Verdict.CRASH, Verdict.TIMEOUT, Verdict.ERROR, Verdict.MISSING})

#: Judges what a cell's engine did without nnsight; results by scenario name.
Alone = Callable[[CellResult], Mapping[str, CellResult]]


def attribute_failures(
    cells: Mapping[str, CellResult],
    columns: Sequence[Column],
    alone: Alone,
    confirmed: Callable[[Column], str] = lambda _: "",
) -> dict[str, CellResult]:
    """Return the cells of one model, each failed one with its attribution.

    `alone` is called only for engines with a failed cell. `confirmed` says why the reference's
    definition of the model can be trusted when a column differs from it by itself.
    """
    by_id = {column.id: column for column in columns}
    engines = {column.id: column.engine for column in columns}
    results = dict(cells)
    for cell in cells.values():
        if not cell.verdict.fails or cell.attribution is not None:
            continue
        column = by_id[cell.backend]
        if column.engine in LIBRARIES:
            results[cell.id] = replace(cell, attribution=_of_library(cell))
            continue
        single_stage = find_one_stage(column, columns)
        plain = plain_of(alone(cell))
        if plain is not None and not plain.agrees:
            plain = replace(plain, confirmed=confirmed(column))
        attribution = attribute(
            cell,
            cells.values(),
            one_stage=single_stage.id if single_stage else "",
            stages=column.pipeline,
            plain=plain,
            engines=engines,
        )
        results[cell.id] = replace(cell, attribution=attribution)
    return results


def _of_library(cell: CellResult) -> Attribution:
    """Attribute a library's cell, in which neither nnsight nor vLLM takes part."""
    if cell.harness or cell.verdict in {Verdict.UNKNOWN, Verdict.VACUOUS}:
        return Attribution(Side.HARNESS, cell.reason or "the harness itself failed")
    return Attribution(Side.UNDECIDED, "the library, or how this project's adapter calls it")


def find_one_stage(column: Column, columns: Sequence[Column]) -> Column | None:
    """Return the one-stage column that differs from this one in nothing else."""
    if column.pipeline == 1:
        return None
    own = _but_stages(column)
    others = (other for other in columns if other.pipeline == 1)
    return next((other for other in others if _but_stages(other) == own), None)


def _but_stages(column: Column) -> tuple[object, ...]:
    where = (column.environment, column.interpreter, column.machine)
    return column.engine, column.tensor, column.options, *where


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
    """Return what a run without nnsight says: nothing if it could not be made, or drifts."""
    if alone.harness or alone.verdict.neutral:
        return None
    verdict = alone.verdict
    if verdict in _ENDED and not alone.observations:
        return _ended(alone)
    if not alone.observations or verdict is Verdict.DRIFT:
        return None
    words = f"its own {_counted(alone.observations)} are"
    if verdict.passes:
        return Plain(agrees=True, evidence=words)
    return Plain(agrees=False, evidence=f"{words} {verdict}: {alone.reason}")


def _ended(generated: CellResult) -> Plain | None:
    """Return a disagreement if the engine raised, or its process just ended; None otherwise."""
    alone = attribute(replace(generated, harness=False), ())
    raised = alone is not None and alone.side is Side.ENGINE
    if generated.verdict is Verdict.ERROR and not raised:
        return None
    evidence = f"its own generation ends in {generated.verdict}: {generated.reason}"
    return Plain(agrees=False, evidence=evidence)


def _counted(observations: Sequence[Judged]) -> str:
    sites = [Site.parse(judged.site) for judged in observations]
    tokens = sum(site.name == "tokens" for site in sites)
    if tokens:
        return f"{tokens} token{'s' * (tokens > 1)} and their log-probabilities"
    return f"streams, seen by plain hooks after {len({site.layer for site in sites})} layers,"

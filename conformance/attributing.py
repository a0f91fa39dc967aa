"""Who has to mend the failed cells of a stored run: what the engines did by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from conformance.judge.attribution import Plain, attribute
from conformance.records import Backend, CellResult, Judged, Side, Site, Verdict

#: Nothing was generated that could be compared; without an error, the process just ended.
_ENDED = frozenset({Verdict.CRASH, Verdict.TIMEOUT, Verdict.ERROR, Verdict.MISSING})

#: Judges what a cell's engine generated without nnsight; None where it was not asked.
Generated = Callable[[CellResult], CellResult | None]


def attributed(
    cells: Mapping[str, CellResult],
    backends: Sequence[Backend],
    single: Callable[[Backend], Backend | None],
    generated: Generated,
) -> dict[str, CellResult]:
    """The cells of one model, each failed one with who is to blame.

    `single` finds the column with one stage to a column with several. What an engine
    generated is judged only where one of its cells failed.
    """
    by_id = {backend.id: backend for backend in backends}
    known: dict[tuple[str, tuple[tuple[int, ...], ...]], CellResult | None] = {}
    found = dict(cells)
    for cell in cells.values():
        if not cell.verdict.fails or cell.attribution is not None:
            continue
        own = (cell.backend, cell.prompt_ids)
        if own not in known:
            known[own] = generated(cell)
        backend = by_id[cell.backend]
        one = single(backend)
        said = attribute(
            cell,
            cells.values(),
            one_stage=one.id if one else "",
            stages=backend.pipeline,
            plain=plain_of(cell, known[own]),
        )
        found[cell.id] = replace(cell, attribution=said)
    return found


def one_stage(backend: Backend, backends: Sequence[Backend]) -> Backend | None:
    """The column that differs from this one in the number of stages only, which is one."""
    if backend.pipeline == 1:
        return None
    same = (backend.engine, backend.tensor, backend.options, backend.environment)
    return next(
        (
            other
            for other in backends
            if other.pipeline == 1
            and (other.engine, other.tensor, other.options, other.environment) == same
        ),
        None,
    )


def plain_of(cell: CellResult, generated: CellResult | None) -> Plain | None:
    """What an engine's own generation says about a failed cell of its.

    One that merely drifts explains no failure but drift. One that could not be made says
    nothing, unless the engine itself was seen to fail in it.
    """
    if generated is None or generated.harness or generated.verdict.neutral:
        return None
    verdict = generated.verdict
    if verdict in _ENDED:
        return _ended(generated)
    explains = verdict is not Verdict.DRIFT or cell.verdict is Verdict.DRIFT
    if not generated.observations or not explains:
        return None
    words = f"its own {_counted(generated.observations)} are"
    if verdict.passes:
        return Plain(agrees=True, evidence=f"{words} within the noise of the truth")
    return Plain(agrees=False, evidence=f"{words} {verdict}: {generated.reason}")


def _ended(generated: CellResult) -> Plain | None:
    """It ended in an error: the engine's only when the engine raised it."""
    alone = attribute(replace(generated, harness=False), ())
    raised = alone is not None and alone.side is Side.ENGINE
    silent = generated.verdict is not Verdict.ERROR
    if not (raised or silent):
        return None
    said = f"its own generation ends in {generated.verdict}: {generated.reason}"
    return Plain(agrees=False, evidence=said)


def _counted(observations: Sequence[Judged]) -> str:
    count = sum(Site.parse(one.site).name == "tokens" for one in observations)
    return f"{count} token{'s' * (count > 1)} and their log-probabilities"

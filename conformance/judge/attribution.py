"""Which side a failed cell is to be blamed on, from what else is known of the same model.

Three facts decide: does the plain engine, without nnsight, agree with the truth; does
the same cell pass on one pipeline stage; is the clean run right where the edited is
wrong, or the last logits where what was read on the way is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from conformance.records import Attribution, CellResult, Judged, Side, Site, Verdict, record


@record()
class Plain:
    """What an engine does by itself, without nnsight: its own tokens, logprobs or states."""

    agrees: bool
    evidence: str


#: A frame's file → whose code it is; the relay is ours, but is the pipeline's transport.
_OWNERS: tuple[tuple[re.Pattern[str], Side], ...] = (
    (re.compile(r"conformance/engines/relay"), Side.PIPELINE),
    (re.compile(r"(^|/)conformance/"), Side.HARNESS),
    (re.compile(r"(^|/)nnsight/"), Side.NNSIGHT),
    (re.compile(r"(^|/)(vllm|transformers)/"), Side.ENGINE),
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
#: Nothing was observed that could be compared.
_ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})


def attribute(
    cell: CellResult,
    others: Iterable[CellResult],
    *,
    one_stage: str = "",
    plain: Plain | None = None,
) -> Attribution | None:
    """Who is to blame for a failed cell; None for one that did not fail.

    `others` are the cells of the same model. `one_stage` is the column that differs from
    the cell's only in having one pipeline stage, "" when it has one itself. `plain` is what
    its engine does without nnsight, None when that is not known.
    """
    if not cell.verdict.fails:
        return None
    if cell.harness or cell.verdict in {Verdict.UNKNOWN, Verdict.VACUOUS}:
        return Attribution(Side.HARNESS, cell.reason)
    known = {(one.backend, one.scenario, one.case): one for one in others}
    single = known.get((one_stage, cell.scenario, cell.case))
    if single is not None and single.verdict.passes:
        return _between_stages(cell, single, plain)
    if cell.verdict in _ENDED:
        return _ended(cell, plain)
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"without nnsight it is wrong as well: {plain.evidence}")
    return _by_parts(cell, list(known.values()), plain)


def _between_stages(cell: CellResult, single: CellResult, plain: Plain | None) -> Attribution:
    passes = f"the same cell is {single.verdict} on {single.backend}"
    if plain is not None and not plain.agrees:
        said = f"{passes}, but {cell.backend} is wrong without nnsight as well: {plain.evidence}"
        return Attribution(Side.ENGINE, said)
    return Attribution(Side.PIPELINE, passes)


def _ended(cell: CellResult, plain: Plain | None) -> Attribution:
    """Nothing to compare: the innermost frame of known code raised it."""
    for path, line in reversed(_FRAME.findall(cell.detail)):
        for pattern, side in _OWNERS:
            if pattern.search(path):
                where = "/".join(path.split("/")[-3:])
                return Attribution(side, f"raised in {where}, line {line}")
    said = f"{cell.verdict}, and no traceback says where"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"without nnsight it fails as well: {plain.evidence}")
    if plain is not None:
        return Attribution(Side.NNSIGHT, f"{said}; without nnsight it is right: {plain.evidence}")
    return Attribution(Side.UNDECIDED, said)


def _by_parts(cell: CellResult, known: Sequence[CellResult], plain: Plain | None) -> Attribution:
    """Clean run against edited run, last logits against what was read on the way."""
    also = f"; without nnsight it is right: {plain.evidence}" if plain is not None else ""
    sites = {Site.parse(one.site): one for one in cell.observations}
    unedited = {site: one for site, one in sites.items() if site.run in {"", "clean"}}
    ends = [one for site, one in unedited.items() if site.name in {"logits", "tokens"}]
    reads = [one for site, one in unedited.items() if site.name not in {"logits", "tokens"}]
    edited = [one for site, one in sites.items() if site.run == "edited"]
    if edited and _right(ends) and _right(reads):
        words = "the clean run is right, only the run with the write is not"
        return Attribution(Side.NNSIGHT, words + also)
    if ends and _right(ends) and reads:
        words = "the logits of the run are right, so what was read on the way was computed right"
        return Attribution(Side.NNSIGHT, words + also)
    if plain is not None:
        words = f"{cell.backend} is right without nnsight ({plain.evidence}) and wrong with it"
        return Attribution(Side.NNSIGHT, words)
    untouched = [
        one
        for one in known
        if one.backend == cell.backend and one.scenario == "clean" != cell.scenario
    ]
    if untouched and all(one.verdict.passes for one in untouched):
        words = f"{cell.backend} is right on the same model when nothing but the logits is read"
        return Attribution(Side.NNSIGHT, words)
    words = "wrong in the clean run's logits too, and what the engine does alone is not known"
    return Attribution(Side.UNDECIDED, words)


def _right(those: Sequence[Judged]) -> bool:
    return all(one.verdict.passes for one in those)

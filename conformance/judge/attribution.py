"""Which side a failed cell is to be blamed on, from what else is known of the same model.

Five facts decide: does the plain engine, without nnsight, agree with the truth; does
the same cell pass on one pipeline stage; is the clean run right where the edited is
wrong, or the last logits where what was read on the way is not; is what the engine itself
handed out of the same run right; and does the scenario fail alike on every engine, which
nobody can be blamed for but a trace that raises.

Truth and HF column share transformers' definition of the model. An engine that differs from the
truth by itself is to blame only where something else stands behind that definition
(`Plain.confirmed`); else two definitions differ, and either may be wrong.

What plain hooks see after the layers speaks for the engine in every cell: they need no other
load, and nothing of vLLM's that refuses most models and several stages. Its own extraction of
hidden states is the witness in the cells that have it (scenario `extract`), where it is
compared with what the block read of the very same forward, and with the truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from conformance.judge.persistence import stays_off
from conformance.judge.plain import Plain
from conformance.judge.raised import by_frames, raised_by_the_scenario
from conformance.records import Attribution, CellResult, Judged, Side, Site, Verdict

__all__ = ["Plain", "attribute"]


#: nnsight mirrors the engine's modules: a name that it lacks is one that they lack.
_NO_MODULE = re.compile(r"'Envoy' object \(nor its module\) has (?:no )?attribute '(\w+)'")
#: How the canary begins that looks whether nnsight's hooks fire (`engines.vllm.hook_canary`).
_SKIPPED = "HooksSkippedError"
#: A scenario's names for the engine's own extraction, and for the ends of a run.
EXTRACTED, ENDS = "extracted", frozenset({"logits", "tokens"})
#: How the reason of a cell reads whose process did not end by its own doing.
_KILLED = re.compile(r"ended (?:from outside|by SIG(?:KILL|TERM|INT|HUP)\b)")

#: Nothing was observed that could be compared.
_ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})
#: The write did something else than it should.
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})
#: Neither a pass nor a failure of the columns.
_NOT_RUN = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNTESTABLE, Verdict.UNKNOWN})


def attribute(
    cell: CellResult,
    others: Iterable[CellResult],
    *,
    one_stage: str = "",
    stages: int = 1,
    plain: Plain | None = None,
    engines: Mapping[str, str] = MappingProxyType({}),
) -> Attribution | None:
    """Who is to blame for a failed cell; None for one that did not fail.

    `others` are the cells of the same model. `one_stage` is the column that differs from
    the cell's only in having one pipeline stage, "" when it has one itself or there is none;
    `stages` is how many the cell's has. `plain` is what its engine does without nnsight, None
    when that is not known. `engines` names the engine of each column.
    """
    if not cell.verdict.fails:
        return None
    known = {(other.backend, other.scenario, other.case): other for other in others}
    single = known.get((one_stage, cell.scenario, cell.case))
    if (nobodys := _no_sides(cell)) is not None:
        return nobodys
    if single is not None and _better(single, cell):
        return _between_stages(cell, single, plain)
    found = _blamed(cell, list(known.values()), plain, engines)
    return _beside_one_stage(found, single, stages) if found.side is Side.NNSIGHT else found


def _beside_one_stage(found: Attribution, single: CellResult | None, stages: int) -> Attribution:
    """What is called nnsight's might on several stages be the pipeline's."""
    if single is not None and single.verdict not in _NOT_RUN:
        said = f"on {single.backend} the cell is {single.verdict} as well"
        return Attribution(Side.NNSIGHT, f"{found.evidence}; {said}")
    if stages > 1:
        said = "on one stage the cell was not run, so nnsight and the pipeline cannot be told apart"
        return Attribution(Side.UNDECIDED, f"{found.evidence}; {said}")
    return found


def _blamed(
    cell: CellResult,
    known: Sequence[CellResult],
    plain: Plain | None,
    engines: Mapping[str, str],
) -> Attribution:
    if shared := _alike_everywhere(cell, known, engines):
        return Attribution(shared.side, shared.evidence + _also(plain))
    if _is_ended(cell):
        return _ended(cell, plain)
    return (
        _of_write(cell, plain)
        or _of_engine(plain)
        or _of_extraction(cell)
        or _by_parts(cell, known, plain)
    )


def _no_sides(cell: CellResult) -> Attribution | None:
    """What was the doing of neither the engine nor nnsight."""
    if cell.harness or cell.verdict in {Verdict.UNKNOWN, Verdict.VACUOUS}:
        return Attribution(Side.HARNESS, cell.reason or "the harness itself failed")
    if cell.left:
        words = f"its block changed {', '.join(cell.left)} of a process that it ran in"
        return Attribution(Side.HARNESS, words)
    if raised_by_the_scenario(cell.frames) and cell.verdict is Verdict.CRASH:
        return by_frames(cell.frames, None)
    if cell.verdict is Verdict.CRASH and _KILLED.search(cell.reason):
        return Attribution(Side.UNDECIDED, f"somebody else ended it: {cell.reason}")
    return None


def _better(single: CellResult, cell: CellResult) -> bool:
    """Does one stage pass, or merely drift where several stages do worse?"""
    drifts = single.verdict is Verdict.DRIFT and cell.verdict is not Verdict.DRIFT
    return single.verdict.passes or drifts


def _between_stages(cell: CellResult, single: CellResult, plain: Plain | None) -> Attribution:
    passes = f"the same cell is {single.verdict} on {single.backend}"
    if plain is not None and not plain.agrees:  # one stage stands behind the definition
        said = f"{passes}, but {cell.backend} is wrong without nnsight as well: {plain.evidence}"
        return Attribution(Side.ENGINE, said)
    if plain is not None:
        passes += f", and {cell.backend} is right without nnsight: {plain.evidence}"
    return Attribution(Side.PIPELINE, passes)


def _ended(cell: CellResult, plain: Plain | None) -> Attribution:
    """Nothing to compare: whose call failed is to blame."""
    absent = _NO_MODULE.search(cell.reason)
    if absent:
        words = f"its modules have no {absent[1]!r}: another tree than the trace was written for"
        return Attribution(Side.ENGINE, words)
    if cell.reason.startswith(_SKIPPED):
        return Attribution(Side.ENGINE, "it went around nnsight's hooks, of which none fired")
    if (raised := by_frames(cell.frames, plain)) is not None:
        return raised
    said = f"{cell.verdict}, and no traceback says where"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"without nnsight it fails as well: {plain.evidence}")
    if plain is not None:
        return Attribution(Side.NNSIGHT, f"{said}; without nnsight it is right: {plain.evidence}")
    return Attribution(Side.UNDECIDED, said)


def _is_ended(cell: CellResult) -> bool:
    nothing = cell.verdict is Verdict.MISSING and not cell.observations
    return cell.verdict in _ENDED or nothing


def _alike_everywhere(
    cell: CellResult, known: Sequence[CellResult], engines: Mapping[str, str]
) -> Attribution | None:
    """A failure that the columns of several engines share: the trace, its reference, or what of
    nnsight all of them run. Only a trace that raised says which.
    """
    columns = [
        other
        for other in known
        if (other.scenario, other.case) == (cell.scenario, cell.case)
        and other.verdict not in _NOT_RUN
    ]
    if len({engines.get(other.backend, other.backend) for other in columns}) < 2:
        return None
    if any(other.verdict is not cell.verdict for other in columns):
        return None
    where = ", ".join(other.backend for other in columns)
    if _is_ended(cell):
        if raised_by_the_scenario(cell.frames) or not _same_words(columns):
            return None
        said = f"{cell.verdict} alike on {where}"
        return Attribution(Side.UNDECIDED, f"{said}: the trace, or nnsight on every engine")
    proof = [_done_rightly(other, known) for other in columns]
    rightly = f", where {proof[0]} does the same rightly" if all(proof) else ""
    said = f"{cell.verdict} alike on {where}{rightly}"
    words = "the scenario or its reference, or nnsight on every engine"
    return Attribution(Side.UNDECIDED, f"{said}: {words}")


def _same_words(columns: Sequence[CellResult]) -> bool:
    """Did all end with one message? Engines of several processes raise it again in their own."""
    first = [other.reason.partition("\n")[0] for other in columns]
    shortest = min(first, key=len)
    return all(shortest in words for words in first)


def _done_rightly(cell: CellResult, known: Sequence[CellResult]) -> str:
    """Another scenario that passes on the cell's column and does what fails here, "" for none."""
    edited = any(Site.parse(one.site).run == "edited" for one in cell.observations)
    off = {_spot(one) for one in cell.observations if one.verdict.fails}
    for other in known:
        if other.backend != cell.backend or other.scenario == cell.scenario:
            continue
        if not other.verdict.passes:
            continue
        writes = any(Site.parse(one.site).run == "edited" for one in other.observations)
        right = {_spot(one) for one in other.observations}
        same_layer = set(cell.layers.values()) <= set(other.layers.values())
        if (not edited or (writes and same_layer)) and off <= right and (off or edited):
            return other.scenario
    return ""


def _spot(judged: Judged) -> tuple[str, int | None]:
    site = Site.parse(judged.site)
    return site.name, site.layer


def _of_write(cell: CellResult, plain: Plain | None) -> Attribution | None:
    """The clean run of the very same trace is right, so engine and reads are."""
    clean = [one for one in cell.observations if Site.parse(one.site).run == "clean"]
    if cell.verdict not in _WRITE or not clean or not _right(clean):
        return None
    words = "the clean run is right, only the run with the write is not"
    return Attribution(Side.NNSIGHT, words + _also(plain))


def _of_engine(plain: Plain | None) -> Attribution | None:
    """It is wrong by itself: to blame, where its definition of the model is not in question."""
    if plain is None or plain.agrees:
        return None
    if plain.confirmed:
        words = f"without nnsight it is wrong as well: {plain.evidence}; {plain.confirmed}"
        return Attribution(Side.ENGINE, words)
    words = "definitions differ: without nnsight the engine's is not transformers', whose code"
    return Attribution(
        Side.UNDECIDED,
        f"{words} the truth is, and nothing says which is right: {plain.evidence}",
    )


def _of_extraction(cell: CellResult) -> Attribution | None:
    """What the engine handed out by itself, beside what the block read of the same run."""
    own = [one for one in cell.observations if Site.parse(one.site).name == EXTRACTED]
    read = [one for one in cell.observations if Site.parse(one.site).name not in {EXTRACTED, *ENDS}]
    if not own or not read or cell.verdict is Verdict.DRIFT:
        return None
    if _right(read) and not _right(own):
        words = "what the engine handed out by itself is off, what was read of the same run is not"
        return Attribution(Side.ENGINE, words)
    if _right(own) and not _right(read):
        words = "what was read is off, what the engine handed out by itself in the same run is not"
        return Attribution(Side.NNSIGHT, words)
    if _right(own):
        words = "what was read and what the engine handed out are both within the noise"
        return Attribution(Side.UNDECIDED, f"{words}, but not the same: either may have changed")
    return None


def _by_parts(cell: CellResult, known: Sequence[CellResult], plain: Plain | None) -> Attribution:
    """Clean run against edited run, last logits against what was read on the way."""
    sites = {Site.parse(one.site): one for one in cell.observations}
    unedited = {site: one for site, one in sites.items() if site.run in {"", "clean"}}
    ends = [one for site, one in unedited.items() if site.name in ENDS]
    reads = [one for site, one in unedited.items() if site.name not in ENDS]
    edited = [one for site, one in sites.items() if site.run == "edited"]
    if cell.verdict is Verdict.DRIFT:
        words = "it drifts, which a coarser computation and a rounded copy both explain"
        return Attribution(Side.UNDECIDED, words + _also(plain))
    if edited and _right(ends) and _right(reads):
        words = "the clean run is right, only the run with the write is not"
        return Attribution(Side.NNSIGHT, words + _also(plain))
    if ends and _right(ends) and reads:
        return _of_reads(reads, plain)
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


def _of_reads(reads: Sequence[Judged], plain: Plain | None) -> Attribution:
    """What was read on the way is off, and the logits at its end are right."""
    if stays_off(reads) and not (plain and plain.streams):
        words = (
            "the logits of the run are right, but what is off on the way stays off to the last "
            "layer, on tokens that these logits need not show"
        )
        return Attribution(Side.UNDECIDED, words + _also(plain))
    words = "the logits of the run are right, so what was read on the way was computed right"
    return Attribution(Side.NNSIGHT, words + _also(plain))


def _also(plain: Plain | None) -> str:
    if plain is None:
        return ""
    said = "it is right" if plain.agrees else "it is wrong as well"
    return f"; without nnsight {said}: {plain.evidence}"


def _right(those: Sequence[Judged]) -> bool:
    return all(one.verdict.passes for one in those)

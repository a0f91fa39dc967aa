"""Decide which side has to fix a failed cell, from other results of the same model.

Five facts decide: whether the plain engine, without nnsight, agrees with the reference; whether the
cell passes on one pipeline stage; whether only the edited run or only the reads are wrong, not the
clean run or the last logits; whether what the engine itself returned from the run is right; and
whether the scenario fails alike on every engine, where only a trace that raised is a sure culprit.

The reference and the HF column share transformers' model code. An engine that differs from the
reference by itself is the culprit only if something else confirms that code (`Plain.confirmed`);
otherwise two definitions differ, and either may be wrong.

What plain hooks read after the layers is evidence for the engine in every cell: it needs no further
load, and works where vLLM's extraction refuses most models and several stages. In scenario
`extract`, the engine's own extraction of hidden states is compared with what the block read in the
same forward pass, and with the reference.
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


#: nnsight mirrors the engine's modules: a name that it lacks is missing there too.
_NO_MODULE = re.compile(r"'Envoy' object \(nor its module\) has (?:no )?attribute '(\w+)'")
#: Prefix of the error of the canary that checks nnsight's hooks (`engines.vllm.hook_canary`).
_SKIPPED = "HooksSkippedError"
#: Prefix of the error for a layer output that its layout cannot read
#: (`residual_stream.UnreadableLayerError`).
_UNREADABLE = re.compile(r"\bUnreadableLayerError: ([^\n]*)")
#: Suffix of an error that the engine also raises without nnsight (`engines.vllm.without_nnsight`).
_WITHOUT_NNSIGHT = "(vLLM raises this without nnsight too)"
#: A scenario's names for the engine's own extraction, and for the final outputs of a run.
EXTRACTED, ENDS = "extracted", frozenset({"logits", "tokens"})
#: Reasons of cells whose process was killed from outside.
_KILLED = re.compile(
    r"ended (?:from outside|by SIG(?:KILL|TERM|INT|HUP)\b)|was stopped by a signal"
)
#: The reason if a user's block may have ended the process, and nothing says who did.
_UNEXPLAINED = "its block may have ended it"

#: Verdicts without any observation to compare.
_ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})
#: Verdicts about a write that had the wrong effect.
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})
#: Verdicts that are neither a pass nor a failure of the column.
_NOT_RUN = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNTESTABLE, Verdict.UNKNOWN})


def attribute(
    cell: CellResult,
    peers: Iterable[CellResult],
    *,
    one_stage: str = "",
    stages: int = 1,
    plain: Plain | None = None,
    engines: Mapping[str, str] = MappingProxyType({}),
) -> Attribution | None:
    """Return the side that has to fix a failed cell; None if it did not fail.

    `peers` are the cells of the same model. `one_stage` is the column that differs only in having
    one pipeline stage, "" if there is none; `stages` is the number of stages of the cell's column.
    `plain` is how its engine does without nnsight, None if unknown. `engines` names the engine of
    each column.
    """
    if not cell.verdict.fails:
        return None
    cells = {(peer.backend, peer.scenario, peer.case): peer for peer in peers}
    single = cells.get((one_stage, cell.scenario, cell.case))
    if (harness := _by_neither(cell)) is not None:
        return harness
    if single is not None and _does_better(single, cell):
        return _between_stages(cell, single, plain)
    attribution = _by_evidence(cell, list(cells.values()), plain, engines)
    return (
        _beside_one_stage(attribution, single, stages)
        if attribution.side is Side.NNSIGHT
        else attribution
    )


def _beside_one_stage(
    attribution: Attribution, single: CellResult | None, stages: int
) -> Attribution:
    """Return the attribution, undecided if the pipeline may be the cause instead of nnsight."""
    if single is not None and single.verdict not in _NOT_RUN:
        words = f"on {single.backend} the cell is {single.verdict} as well"
        return Attribution(Side.NNSIGHT, f"{attribution.evidence}; {words}")
    if stages > 1:
        words = (
            "on one stage the cell was not run, so nothing distinguishes nnsight from the pipeline"
        )
        return Attribution(Side.UNDECIDED, f"{attribution.evidence}; {words}")
    return attribution


def _by_evidence(
    cell: CellResult,
    peers: Sequence[CellResult],
    plain: Plain | None,
    engines: Mapping[str, str],
) -> Attribution:
    if alike := _alike_everywhere(cell, peers, engines):
        return Attribution(alike.side, alike.evidence + _without_nnsight(plain))
    if _is_ended(cell):
        return _ended(cell, plain)
    return (
        _by_write(cell, plain)
        or _by_engine(plain)
        or _by_extraction(cell)
        or _by_runs_and_ends(cell, peers, plain)
    )


def _by_neither(cell: CellResult) -> Attribution | None:
    """Attribute a cell to causes outside both engine and nnsight."""
    if cell.harness or cell.verdict in {Verdict.UNKNOWN, Verdict.VACUOUS}:
        return Attribution(Side.HARNESS, cell.reason or "the harness itself failed")
    if cell.left:
        words = f"its block, or nnsight on its behalf, has changed {', '.join(cell.left)}"
        return Attribution(Side.UNDECIDED, words)
    if raised_by_the_scenario(cell.frames) and cell.verdict is Verdict.CRASH:
        return by_frames(cell.frames, None)
    if cell.verdict in {Verdict.CRASH, Verdict.TIMEOUT} and _KILLED.search(cell.reason):
        return Attribution(Side.UNDECIDED, f"a signal from elsewhere ended it: {cell.reason}")
    return None


def _does_better(single: CellResult, cell: CellResult) -> bool:
    """Return whether one stage passes, or only drifts where several stages do worse."""
    drifts = single.verdict is Verdict.DRIFT and cell.verdict is not Verdict.DRIFT
    return single.verdict.passes or drifts


def _between_stages(cell: CellResult, single: CellResult, plain: Plain | None) -> Attribution:
    passes = f"the same cell is {single.verdict} on {single.backend}"
    if plain is not None and not plain.agrees:  # the one-stage column confirms the definition
        words = f"{passes}, but {cell.backend} is wrong without nnsight as well: {plain.evidence}"
        return Attribution(Side.ENGINE, words)
    if plain is not None:
        passes += f", and {cell.backend} is right without nnsight: {plain.evidence}"
    return Attribution(Side.PIPELINE, passes)


def _ended(cell: CellResult, plain: Plain | None) -> Attribution:
    """Attribute a cell without observations to the side whose call failed."""
    stated = _by_words(cell.reason, plain) or by_frames(cell.frames, plain)
    if stated is not None:
        return stated
    ending = f"{cell.verdict}, and no traceback says where"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"without nnsight it fails as well: {plain.evidence}")
    if _UNEXPLAINED in cell.reason:
        words = f"{ending}: {_UNEXPLAINED}"
        return Attribution(Side.UNDECIDED, words + _without_nnsight(plain))
    if plain is not None:
        return Attribution(Side.NNSIGHT, f"{ending}; without nnsight it is right: {plain.evidence}")
    return Attribution(Side.UNDECIDED, ending)


def _by_words(reason: str, plain: Plain | None) -> Attribution | None:
    """Attribute errors whose message names the cause, wherever they were raised."""
    if absent := _NO_MODULE.search(reason):
        words = f"its modules have no {absent[1]!r}: another tree than the trace was written for"
        return Attribution(Side.ENGINE, words)
    if _WITHOUT_NNSIGHT in reason:
        return Attribution(Side.ENGINE, "it raises the same when it is started without nnsight")
    if reason.startswith(_SKIPPED):
        return Attribution(Side.ENGINE, "it went around nnsight's hooks: none fired")
    if unreadable := _UNREADABLE.search(reason):
        return _by_what_was_handed(unreadable[1], plain)
    return None


def _by_what_was_handed(words: str, plain: Plain | None) -> Attribution:
    """Attribute an UnreadableLayerError, which the harness raised, to the side that produced the
    value.

    The layer's output had another form than when the model was probed.
    """
    if plain is None:
        return Attribution(Side.UNDECIDED, f"{words}: the engine, or nnsight on the way")
    side = Side.NNSIGHT if plain.agrees else Side.ENGINE
    return Attribution(side, words + _without_nnsight(plain))


def _is_ended(cell: CellResult) -> bool:
    nothing = cell.verdict is Verdict.MISSING and not cell.observations
    return cell.verdict in _ENDED or nothing


def _alike_everywhere(
    cell: CellResult, peers: Sequence[CellResult], engines: Mapping[str, str]
) -> Attribution | None:
    """Attribute a failure that the columns of several engines share.

    It is the trace, its reference, or nnsight code common to all. Only a trace that raised is
    certain.
    """
    columns = [
        peer
        for peer in peers
        if (peer.scenario, peer.case) == (cell.scenario, cell.case) and peer.verdict not in _NOT_RUN
    ]
    if len({engines.get(peer.backend, peer.backend) for peer in columns}) < 2:
        return None
    if any(peer.verdict is not cell.verdict for peer in columns):
        return None
    where = ", ".join(peer.backend for peer in columns)
    if _is_ended(cell):
        if raised_by_the_scenario(cell.frames) or not _same_words(columns):
            return None
        where_alike = f"{cell.verdict} alike on {where}"
        return Attribution(Side.UNDECIDED, f"{where_alike}: the trace, or nnsight on every engine")
    proof = [_passing_scenario(peer, peers) for peer in columns]
    rightly = f", where {proof[0]} does the same rightly" if all(proof) else ""
    where_alike = f"{cell.verdict} alike on {where}{rightly}"
    suspects = "the scenario or its reference, or nnsight on every engine"
    return Attribution(Side.UNDECIDED, f"{where_alike}: {suspects}")


def _same_words(columns: Sequence[CellResult]) -> bool:
    """Return whether all ended with one message; multiprocess engines wrap it in their own."""
    messages = [column.reason.partition("\n")[0] for column in columns]
    shortest = min(messages, key=len)
    return all(shortest in message for message in messages)


def _passing_scenario(cell: CellResult, peers: Sequence[CellResult]) -> str:
    """Return a scenario that passes on this column and covers what fails here, "" if none does."""
    edited = any(Site.parse(observation.site).run == "edited" for observation in cell.observations)
    failing = {_spot(observation) for observation in cell.observations if observation.verdict.fails}
    for peer in peers:
        if peer.backend != cell.backend or peer.scenario == cell.scenario:
            continue
        if not peer.verdict.passes:
            continue
        writes = any(
            Site.parse(observation.site).run == "edited" for observation in peer.observations
        )
        passing = {_spot(observation) for observation in peer.observations}
        same_layer = set(cell.layers.values()) <= set(peer.layers.values())
        if (not edited or (writes and same_layer)) and failing <= passing and (failing or edited):
            return peer.scenario
    return ""


def _spot(observation: Judged) -> tuple[str, int | None]:
    site = Site.parse(observation.site)
    return site.name, site.layer


def _by_write(cell: CellResult, plain: Plain | None) -> Attribution | None:
    """Attribute to nnsight if the clean run of the same trace is right: so are engine and reads."""
    clean = [
        observation
        for observation in cell.observations
        if Site.parse(observation.site).run == "clean"
    ]
    if cell.verdict not in _WRITE or not clean or not _all_pass(clean):
        return None
    words = "the clean run is right, only the run with the write is not"
    return Attribution(Side.NNSIGHT, words + _without_nnsight(plain))


def _by_engine(plain: Plain | None) -> Attribution | None:
    """Attribute to the engine if it is wrong by itself and its definition is confirmed."""
    if plain is None or plain.agrees:
        return None
    if plain.confirmed:
        words = f"without nnsight it is wrong as well: {plain.evidence}; {plain.confirmed}"
        return Attribution(Side.ENGINE, words)
    words = "definitions differ: without nnsight the engine's is not transformers', whose code"
    return Attribution(
        Side.UNDECIDED,
        f"{words} the reference is, and nothing says which is right: {plain.evidence}",
    )


def _by_extraction(cell: CellResult) -> Attribution | None:
    """Compare what the engine returned by itself with what the block read in the same run."""
    extracted = [
        observation
        for observation in cell.observations
        if Site.parse(observation.site).name == EXTRACTED
    ]
    read = [
        observation
        for observation in cell.observations
        if Site.parse(observation.site).name not in {EXTRACTED, *ENDS}
    ]
    if not extracted or not read or cell.verdict is Verdict.DRIFT:
        return None
    if _all_pass(read) and not _all_pass(extracted):
        words = "what the engine handed out by itself is off, what was read of the same run is not"
        return Attribution(Side.ENGINE, words)
    if _all_pass(extracted) and not _all_pass(read):
        words = "what was read is off, what the engine handed out by itself in the same run is not"
        return Attribution(Side.NNSIGHT, words)
    if _all_pass(extracted):
        words = "what was read and what the engine handed out are both within the noise"
        return Attribution(Side.UNDECIDED, f"{words}, but not the same: either may have changed")
    return None


def _by_runs_and_ends(
    cell: CellResult, peers: Sequence[CellResult], plain: Plain | None
) -> Attribution:
    """Compare clean and edited run, and the last logits with earlier reads."""
    sites = {Site.parse(observation.site): observation for observation in cell.observations}
    unedited = {site: one for site, one in sites.items() if site.run in {"", "clean"}}
    ends = [observation for site, observation in unedited.items() if site.name in ENDS]
    reads = [observation for site, observation in unedited.items() if site.name not in ENDS]
    edited = [observation for site, observation in sites.items() if site.run == "edited"]
    if cell.verdict is Verdict.DRIFT:
        words = "it drifts, which a coarser computation and a rounded copy both explain"
        return Attribution(Side.UNDECIDED, words + _without_nnsight(plain))
    if edited and _all_pass(ends) and _all_pass(reads):
        words = "the clean run is right, only the run with the write is not"
        return Attribution(Side.NNSIGHT, words + _without_nnsight(plain))
    if ends and _all_pass(ends) and reads:
        return _by_reads(reads, plain)
    if plain is not None:
        words = f"{cell.backend} is right without nnsight ({plain.evidence}) and wrong with it"
        return Attribution(Side.NNSIGHT, words)
    untouched = [
        clean_cell
        for clean_cell in peers
        if clean_cell.backend == cell.backend and clean_cell.scenario == "clean" != cell.scenario
    ]
    if untouched and all(clean_cell.verdict.passes for clean_cell in untouched):
        words = f"{cell.backend} is right on the same model when nothing but the logits is read"
        return Attribution(Side.NNSIGHT, words)
    words = "wrong in the clean run's logits too, and what the engine does alone is not known"
    return Attribution(Side.UNDECIDED, words)


def _by_reads(reads: Sequence[Judged], plain: Plain | None) -> Attribution:
    """Attribute reads that are off in a run whose logits are right."""
    if stays_off(reads) and not (plain and plain.streams):
        words = (
            "the logits of the run are right, but what is off on the way stays off to the last "
            "layer, on tokens that these logits need not show"
        )
        return Attribution(Side.UNDECIDED, words + _without_nnsight(plain))
    words = "the logits of the run are right, so what was read on the way was computed right"
    return Attribution(Side.NNSIGHT, words + _without_nnsight(plain))


def _without_nnsight(plain: Plain | None) -> str:
    if plain is None:
        return ""
    words = "it is right" if plain.agrees else "it is wrong as well"
    return f"; without nnsight {words}: {plain.evidence}"


def _all_pass(observations: Sequence[Judged]) -> bool:
    return all(observation.verdict.passes for observation in observations)

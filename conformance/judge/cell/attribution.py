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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from types import MappingProxyType

from conformance.judge.cell.raised import (
    Plain,
    attribute_ended,
    by_frames,
    describe_plain,
    raised_by_the_scenario,
)
from conformance.spec.records import Attribution, CellResult, Judged, Side, Site, Verdict

__all__ = ["Plain", "attribute"]

#: A scenario's names for the engine's own extraction, and for the final outputs of a run.
EXTRACTED, ENDS = "extracted", frozenset({"logits", "tokens"})
#: Reasons of cells whose process was killed from outside.
_KILLED = re.compile(
    r"ended (?:from outside|by SIG(?:KILL|TERM|INT|HUP)\b)|was stopped by a signal"
)
#: Verdicts without any observation to compare.
_ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})
#: Verdicts about a write that had the wrong effect.
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})
#: Verdicts that are neither a pass nor a failure of the column.
_NOT_RUN = frozenset({Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNTESTABLE, Verdict.UNKNOWN})
#: The upper limit of k_max: a larger ratio never passes.
_NOISE = 3.0
_WRITE_ALONE = "the clean run is right, only the run with the write is not"


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
    if (neither := _by_neither(cell)) is not None:
        return neither
    if single is not None and (single.verdict.passes or single.verdict is Verdict.DRIFT):
        return _between_stages(cell, single, plain)
    attribution = _by_evidence(cell, list(cells.values()), plain, engines)
    # The pipeline may be the cause instead of nnsight.
    side, words = Side.NNSIGHT, ""
    if single is not None and single.verdict not in _NOT_RUN:
        words = f"on {single.backend} the cell is {single.verdict} as well"
    elif stages > 1:
        one = "on one stage the cell was not run"
        side, words = Side.UNDECIDED, f"{one}, so nothing distinguishes nnsight from the pipeline"
    if attribution.side is not Side.NNSIGHT or not words:
        return attribution
    return Attribution(side, f"{attribution.evidence}; {words}")


def by_harness(cell: CellResult) -> Attribution | None:
    """Attribute a cell to the harness if it failed itself or could not judge."""
    if cell.harness or cell.verdict in {Verdict.UNKNOWN, Verdict.VACUOUS}:
        return Attribution(Side.HARNESS, cell.reason or "the harness itself failed")
    return None


def _by_neither(cell: CellResult) -> Attribution | None:
    """Attribute a cell to causes outside both engine and nnsight."""
    if (own := by_harness(cell)) is not None:
        return own
    if cell.left:
        words = f"its block, or nnsight on its behalf, has changed {', '.join(cell.left)}"
        return Attribution(Side.UNDECIDED, words)
    if raised_by_the_scenario(cell.frames) and cell.verdict is Verdict.CRASH:
        return by_frames(cell.frames, None)
    if cell.verdict in {Verdict.CRASH, Verdict.TIMEOUT} and _KILLED.search(cell.reason):
        return Attribution(Side.UNDECIDED, f"a signal from elsewhere ended it: {cell.reason}")
    return None


def _between_stages(cell: CellResult, single: CellResult, plain: Plain | None) -> Attribution:
    passes = f"the same cell is {single.verdict} on {single.backend}"
    if plain is not None and not plain.agrees:  # the one-stage column confirms the definition
        words = f"{passes}, but {cell.backend} is wrong without nnsight as well: {plain.evidence}"
        return Attribution(Side.ENGINE, words)
    if plain is not None:
        passes += f", and {cell.backend} is right without nnsight: {plain.evidence}"
    return Attribution(Side.PIPELINE, passes)


def _by_evidence(
    cell: CellResult,
    peers: Sequence[CellResult],
    plain: Plain | None,
    engines: Mapping[str, str],
) -> Attribution:
    # Without observations, no reading of the layers is the stream: the harness lacks it, unless
    # the engine computes another stream by itself.
    unread = cell.verdict is Verdict.STRUCTURE and not cell.observations
    if unread and (plain is None or plain.agrees):
        side = Side.UNDECIDED if plain is None else Side.HARNESS
        return Attribution(side, cell.reason + describe_plain(plain))
    if alike := _alike_everywhere(cell, peers, engines):
        return Attribution(Side.UNDECIDED, alike + describe_plain(plain))
    if _is_ended(cell):
        return attribute_ended(cell, plain)
    # If the clean run of the same trace is right, so are the engine and the reads.
    clean = _select(cell, lambda site: site.run == "clean")
    if cell.verdict in _WRITE and clean and _all_pass(clean):
        return Attribution(Side.NNSIGHT, _WRITE_ALONE + describe_plain(plain))
    return _by_engine(plain) or _by_extraction(cell) or _by_runs_and_ends(cell, peers, plain)


def _is_ended(cell: CellResult) -> bool:
    nothing = cell.verdict is Verdict.MISSING and not cell.observations
    return cell.verdict in _ENDED or nothing


def _alike_everywhere(
    cell: CellResult, peers: Sequence[CellResult], engines: Mapping[str, str]
) -> str:
    """Describe a failure that the columns of several engines share, "" if they do not.

    It is the trace, its reference, or nnsight code common to all. Only a trace that raised is
    certain.
    """
    columns = [
        peer
        for peer in peers
        if (peer.scenario, peer.case) == (cell.scenario, cell.case) and peer.verdict not in _NOT_RUN
    ]
    one_engine = len({engines.get(peer.backend, peer.backend) for peer in columns}) < 2
    if one_engine or any(peer.verdict is not cell.verdict for peer in columns):
        return ""
    alike = f"{cell.verdict} alike on {', '.join(peer.backend for peer in columns)}"
    if _is_ended(cell):
        # Multiprocess engines wrap a message in their own.
        messages = [column.reason.partition("\n")[0] for column in columns]
        same_words = all(min(messages, key=len) in message for message in messages)
        if raised_by_the_scenario(cell.frames) or not same_words:
            return ""
        return f"{alike}: the trace, or nnsight on every engine"
    proof = [_passing_scenario(peer, peers) for peer in columns]
    rightly = f", where {proof[0]} does the same rightly" if all(proof) else ""
    return f"{alike}{rightly}: the scenario or its reference, or nnsight on every engine"


def _passing_scenario(cell: CellResult, peers: Sequence[CellResult]) -> str:
    """Return a scenario that passes on this column and covers what fails here, "" if none does."""
    edited = _select(cell, lambda site: site.run == "edited")
    failing = _spots(one for one in cell.observations if one.verdict.fails)
    for peer in peers:
        other = peer.backend == cell.backend and peer.scenario != cell.scenario
        if not (other and peer.verdict.passes and failing <= _spots(peer.observations)):
            continue
        writes = _select(peer, lambda site: site.run == "edited")
        same_layer = set(cell.layers.values()) <= set(peer.layers.values())
        if (writes and same_layer) if edited else failing:
            return peer.scenario
    return ""


def _spots(observations: Iterable[Judged]) -> set[tuple[str, int | None]]:
    sites = [Site.parse(observation.site) for observation in observations]
    return {(site.name, site.layer) for site in sites}


def _select(cell: CellResult, keep: Callable[[Site], bool]) -> list[Judged]:
    return [one for one in cell.observations if keep(Site.parse(one.site))]


def _all_pass(observations: Sequence[Judged]) -> bool:
    return all(observation.verdict.passes for observation in observations)


def _by_engine(plain: Plain | None) -> Attribution | None:
    """Attribute to the engine if it is wrong by itself and its definition is confirmed."""
    if plain is None or plain.agrees:
        return None
    if plain.confirmed:
        words = f"without nnsight it is wrong as well: {plain.evidence}; {plain.confirmed}"
        return Attribution(Side.ENGINE, words)
    words = (
        "definitions differ: without nnsight the engine's is not transformers', whose code the "
        f"reference is, and nothing says which is right: {plain.evidence}"
    )
    return Attribution(Side.UNDECIDED, words)


def _by_extraction(cell: CellResult) -> Attribution | None:
    """Compare what the engine returned by itself with what the block read in the same run."""
    extracted = _select(cell, lambda site: site.name == EXTRACTED)
    read = _select(cell, lambda site: site.name not in {EXTRACTED, *ENDS})
    if not extracted or not read:
        return None
    right, read_right = _all_pass(extracted), _all_pass(read)
    if right and read_right:
        words = "what was read and what the engine handed out are both within the noise"
        return Attribution(Side.UNDECIDED, f"{words}, but not the same: either may have changed")
    if read_right:
        words = "what the engine handed out by itself is off, what was read of the same run is not"
        return Attribution(Side.ENGINE, words)
    if right:
        words = "what was read is off, what the engine handed out by itself in the same run is not"
        return Attribution(Side.NNSIGHT, words)
    return None


def _by_runs_and_ends(
    cell: CellResult, peers: Sequence[CellResult], plain: Plain | None
) -> Attribution:
    """Compare clean and edited run, and the last logits with earlier reads."""
    note = describe_plain(plain)
    ends = _select(cell, lambda site: site.run != "edited" and site.name in ENDS)
    reads = _select(cell, lambda site: site.run != "edited" and site.name not in ENDS)
    edited = _select(cell, lambda site: site.run == "edited")
    if edited and _all_pass(ends) and _all_pass(reads):
        return Attribution(Side.NNSIGHT, _WRITE_ALONE + note)
    if ends and reads and _all_pass(ends):
        if _stays_off(reads) and not (plain and plain.streams):
            words = (
                "the logits of the run are right, but what is off on the way stays off to the last "
                "layer, on tokens that these logits need not show"
            )
            return Attribution(Side.UNDECIDED, words + note)
        words = "the logits of the run are right, so what was read on the way was computed right"
        return Attribution(Side.NNSIGHT, words + note)
    if plain is not None:
        words = f"{cell.backend} is right without nnsight ({plain.evidence}) and wrong with it"
        return Attribution(Side.NNSIGHT, words)
    untouched = [
        peer.verdict.passes
        for peer in peers
        if peer.backend == cell.backend and peer.scenario == "clean" != cell.scenario
    ]
    if untouched and all(untouched):
        words = f"{cell.backend} is right on the same model when nothing but the logits is read"
        return Attribution(Side.NNSIGHT, words)
    words = "wrong in the clean run's logits too, and what the engine does alone is not known"
    return Attribution(Side.UNDECIDED, words)


def _stays_off(reads: Sequence[Judged]) -> bool:
    """Return whether the stream is off from some layer to the last, but never at the last token.

    The logits come from the last token. It sees the others only through attention, which can hide
    that one of them is wrong.
    """
    streams: dict[tuple[int, int], dict[int, Judged]] = {}
    for observation in reads:
        site = Site.parse(observation.site)
        if site.name == "stream" and site.layer is not None:
            streams.setdefault((site.prompt, site.step), {})[site.layer] = observation
    stay = []
    for by_layer in streams.values():
        ordered = [observation for _, observation in sorted(by_layer.items())]
        after = list(dropwhile(lambda one: one.verdict.passes, ordered))
        spares_last = all(
            one.ratios and one.ratios[-1] <= _NOISE < max(one.ratios) for one in after
        )
        off = not any(one.verdict.passes for one in after)
        stay += [off and spares_last and len(after) > 1] if after else []
    return bool(stay) and all(stay)

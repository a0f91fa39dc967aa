"""Attribute a cell that ended without observations to the side whose call failed.

Frames say whose code ran, by package location (`conformance.worker.frames`). The innermost one
raised. If it is the engine's, it matters who called the engine, at which entry point, and how far
the call went. nnsight builds models, rewrites configurations and reaches into engine internals that
no user touches. If an engine raised before it computed, nnsight may have made a wrong request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.spec.records import Attribution, CellResult, Frame, Owner, Side, record

#: Where an engine is entered by its normal users and when it computes.
_DOORS = (
    "vllm/entrypoints/",
    "vllm/engine/",
    "vllm/v1/engine/",
    "vllm/v1/executor/",
    "vllm/v1/worker/",
    "vllm/sampling_params.py",
    "vllm/inputs/",
    "transformers/",
)
#: Where an engine loads and computes. Earlier errors have only checked a request or its options.
_AT_WORK = (
    "vllm/model_executor/",
    "vllm/v1/attention/",
    "vllm/v1/executor/",
    "vllm/v1/sample/",
    "vllm/v1/worker/",
    "transformers/models/",
    # Reads weights and reports those that did not fit.
    "transformers/core_model_loading.py",
    "transformers/utils/loading_report.py",
)
#: Among these files, the code that only finds a model's class and forwards the arguments.
_AUTO = "transformers/models/auto/"
_SIDES = {
    Owner.SCENARIO: Side.HARNESS,
    Owner.HARNESS: Side.HARNESS,
    Owner.PIPELINE: Side.PIPELINE,
    Owner.NNSIGHT: Side.NNSIGHT,
}

#: nnsight mirrors the engine's modules: a name that it lacks is missing there too.
_NO_MODULE = re.compile(r"'Envoy' object \(nor its module\) has (?:no )?attribute '(\w+)'")
#: Prefix of the error of the canary that checks nnsight's hooks (`engines.vllm.hook_canary`).
_SKIPPED = "HooksSkippedError"
#: Prefix of the error for a layer output that its layout cannot read
#: (`residual_stream.UnreadableLayerError`).
_UNREADABLE = re.compile(r"\bUnreadableLayerError: ([^\n]*)")
#: Suffix of an error that the engine also raises without nnsight (`engines.vllm.without_nnsight`).
_WITHOUT_NNSIGHT = "(vLLM raises this without nnsight too)"
#: The reason if a user's block may have ended the process, and nothing says who did.
_UNEXPLAINED = "its block may have ended it"


@record()
class Plain:
    """Whether the engine by itself agrees with the reference, and why.

    Compared are its own tokens and log-probabilities and, if `streams`, what plain hooks read after
    its layers. `confirmed` says why the reference's definition of the model can be trusted, "" if
    it cannot: an engine that disagrees then deviates from its own definition.
    """

    agrees: bool
    evidence: str
    streams: bool = False
    confirmed: str = ""


def describe_plain(plain: Plain | None) -> str:
    """Return a clause on the engine without nnsight, "" if that is unknown."""
    if plain is None:
        return ""
    how = "right" if plain.agrees else "wrong as well"
    return f"; without nnsight it is {how}: {plain.evidence}"


def attribute_ended(cell: CellResult, plain: Plain | None) -> Attribution:
    """Attribute a cell without observations to the side whose call failed."""
    stated = _by_words(cell.reason, plain) or by_frames(cell.frames, plain)
    if stated is not None:
        return stated
    ending = f"{cell.verdict}, and no traceback says where"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"without nnsight it fails as well: {plain.evidence}")
    if _UNEXPLAINED in cell.reason:
        words = f"{ending}: {_UNEXPLAINED}"
        return Attribution(Side.UNDECIDED, words + describe_plain(plain))
    if plain is not None:
        return Attribution(Side.NNSIGHT, f"{ending}{describe_plain(plain)}")
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
    if (unreadable := _UNREADABLE.search(reason)) is None:
        return None
    # The harness raised it: the layer's output had another form than when the model was probed.
    if plain is None:
        return Attribution(Side.UNDECIDED, f"{unreadable[1]}: the engine, or nnsight on the way")
    side = Side.NNSIGHT if plain.agrees else Side.ENGINE
    return Attribution(side, unreadable[1] + describe_plain(plain))


def raised_by_the_scenario(frames: Sequence[Frame]) -> bool:
    return bool(frames) and frames[-1].owner is Owner.SCENARIO


def by_frames(frames: Sequence[Frame], plain: Plain | None) -> Attribution | None:
    """Return the side whose call failed; None if no frame shows it, or an injected fault raised."""
    if not frames or frames[-1].owner is Owner.SELFTEST:
        return None
    frames = [frame for frame in frames if frame.owner is not Owner.SELFTEST]
    last = frames[-1]
    evidence = f"raised in {_place(last)}"
    if last.owner is not Owner.ENGINE:
        return Attribution(_SIDES[last.owner], evidence)
    return _by_caller(frames, evidence, plain)


def _by_caller(frames: Sequence[Frame], evidence: str, plain: Plain | None) -> Attribution:
    """Attribute an error inside the engine by who called it, and how far the call went."""
    caller, entered = _find_call(frames)
    if caller is None or caller.owner is not Owner.NNSIGHT:
        return Attribution(Side.ENGINE, evidence)
    evidence = f"{evidence}, called by nnsight in {_place(caller)}"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"{evidence}; without nnsight too: {plain.evidence}")
    if plain is not None:
        words = f"without nnsight the engine is right: {plain.evidence}"
        return Attribution(Side.NNSIGHT, f"{evidence}; {words}")
    if not any(frame.file.startswith(_DOORS) for frame in entered):
        words = f"by {entered[0].file}, where no user of the engine enters it"
        return Attribution(Side.NNSIGHT, f"{evidence}, {words}")
    if not any(f.file.startswith(_AT_WORK) and not f.file.startswith(_AUTO) for f in entered):
        words = "before the engine computed: what nnsight asked of it, or the engine"
        return Attribution(Side.UNDECIDED, f"{evidence}, {words}")
    return Attribution(Side.ENGINE, evidence)


def _find_call(frames: Sequence[Frame]) -> tuple[Frame | None, list[Frame]]:
    """Return the last caller of the engine, and the engine's frames from there on.

    The harness's mixin, called by the engine and calling it again, is no caller: it watches a step
    and requests nothing.
    """
    entered: list[Frame] = []
    for index in reversed(range(len(frames))):
        owners = [f.owner for f in frames[: index + 1] if f.owner is not Owner.HARNESS]
        passes_on = frames[index].owner is Owner.HARNESS and owners[-1:] == [Owner.ENGINE]
        if frames[index].owner is Owner.ENGINE:
            entered.insert(0, frames[index])
        elif not passes_on:
            return frames[index], entered
    return None, entered


def _place(frame: Frame) -> str:
    where = "the block of the trace" if frame.file.startswith("<") else frame.file
    return f"{where}, line {frame.line}"

"""Attribute a cell that ended in an error to the side whose call failed.

Frames say whose code ran, by package location (`conformance.worker.frames`). The innermost one
raised. If it is the engine's, it matters who called the engine, at which entry point, and how far
the call went. nnsight builds models, rewrites configurations and reaches into engine internals that
no user touches. If an engine raised before it computed, nnsight may have made a wrong request.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.judge.plain import Plain
from conformance.records import Attribution, Frame, Owner, Side

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
#: Where an engine loads and computes. Errors raised before have only checked a request or its
#: options.
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
    Owner.ENGINE: Side.ENGINE,
}


def by_frames(frames: Sequence[Frame], plain: Plain | None) -> Attribution | None:
    """Return the side whose call failed; None if no frame shows it, or an injected fault raised."""
    if not frames or frames[-1].owner is Owner.SELFTEST:
        return None
    frames = [frame for frame in frames if frame.owner is not Owner.SELFTEST]
    last = frames[-1]
    evidence = f"raised in {_place(last)}"
    if last.owner is not Owner.ENGINE:
        return Attribution(_SIDES[last.owner], evidence)
    return _inside_the_engine(frames, evidence, plain)


def raised_by_the_scenario(frames: Sequence[Frame]) -> bool:
    return bool(frames) and frames[-1].owner is Owner.SCENARIO


def _inside_the_engine(frames: Sequence[Frame], evidence: str, plain: Plain | None) -> Attribution:
    caller, entered = _call(frames)
    if caller is None or caller.owner is not Owner.NNSIGHT:
        return Attribution(Side.ENGINE, evidence)
    through_nnsight = f"{evidence}, called by nnsight in {_place(caller)}"
    if plain is not None and not plain.agrees:
        return Attribution(Side.ENGINE, f"{through_nnsight}; without nnsight too: {plain.evidence}")
    if plain is not None:
        words = f"without nnsight the engine is right: {plain.evidence}"
        return Attribution(Side.NNSIGHT, f"{through_nnsight}; {words}")
    if not any(frame.file.startswith(_DOORS) for frame in entered):
        words = f"by {entered[0].file}, where no user of the engine enters it"
        return Attribution(Side.NNSIGHT, f"{through_nnsight}, {words}")
    if not any(map(_at_work, entered)):
        words = "before the engine computed: what nnsight asked of it, or the engine"
        return Attribution(Side.UNDECIDED, f"{through_nnsight}, {words}")
    return Attribution(Side.ENGINE, through_nnsight)


def _at_work(frame: Frame) -> bool:
    return frame.file.startswith(_AT_WORK) and not frame.file.startswith(_AUTO)


def _call(frames: Sequence[Frame]) -> tuple[Frame | None, list[Frame]]:
    """Return the last caller of the engine, and the engine's frames from there on."""
    entered: list[Frame] = []
    for index in reversed(range(len(frames))):
        if frames[index].owner is Owner.ENGINE:
            entered.insert(0, frames[index])
        elif not _passes_on(frames[: index + 1]):
            return frames[index], entered
    return None, entered


def _passes_on(frames: Sequence[Frame]) -> bool:
    """Return whether the last frame is the harness's mixin, called by the engine and calling it
    again.

    The mixin watches a step and requests nothing from the engine.
    """
    callers = [frame.owner for frame in frames if frame.owner is not Owner.HARNESS]
    return frames[-1].owner is Owner.HARNESS and bool(callers) and callers[-1] is Owner.ENGINE


def _place(frame: Frame) -> str:
    where = "the block of the trace" if frame.file.startswith("<") else frame.file
    return f"{where}, line {frame.line}"

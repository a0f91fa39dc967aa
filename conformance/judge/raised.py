"""Who is to blame for a cell that ended in an error: whose call it was that failed.

Frames say whose code ran, by where the packages lie (`conformance.worker.frames`). The innermost
one raised. Where that is the engine's, the question is who called the engine, through which door,
and how far the call went: nnsight builds models, rewrites configurations and reaches into an
engine's insides in ways that no user of the engine does; and where an engine raised before it
computed, what it was asked for may have been wrong, which nnsight put together.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.judge.plain import Plain
from conformance.records import Attribution, Frame, Owner, Side

#: What an engine goes through when it is used as it is meant to be, and when it computes.
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
#: Where an engine loads and computes. What is raised before has looked at a request, or at options,
#: and no more.
_AT_WORK = (
    "vllm/model_executor/",
    "vllm/v1/attention/",
    "vllm/v1/executor/",
    "vllm/v1/sample/",
    "vllm/v1/worker/",
    "transformers/models/",
    # Weights are read, and what did not fit is told.
    "transformers/core_model_loading.py",
    "transformers/utils/loading_report.py",
)
#: Among these files what only finds the class of a model, and hands the arguments on.
_AUTO = "transformers/models/auto/"
_SIDES = {
    Owner.SCENARIO: Side.HARNESS,
    Owner.HARNESS: Side.HARNESS,
    Owner.PIPELINE: Side.PIPELINE,
    Owner.NNSIGHT: Side.NNSIGHT,
    Owner.ENGINE: Side.ENGINE,
}


def by_frames(frames: Sequence[Frame], plain: Plain | None) -> Attribution | None:
    """The side whose call failed; None where no frame says it, or an injected fault raised."""
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
    """Who called the engine last, and the engine's frames from there on."""
    entered: list[Frame] = []
    for index in reversed(range(len(frames))):
        if frames[index].owner is Owner.ENGINE:
            entered.insert(0, frames[index])
        elif not _passes_on(frames[: index + 1]):
            return frames[index], entered
    return None, entered


def _passes_on(frames: Sequence[Frame]) -> bool:
    """Is the last frame of the harness's own mixin, which the engine called and which calls the
    engine on? It watches a step, and asks nothing of the engine.
    """
    callers = [frame.owner for frame in frames if frame.owner is not Owner.HARNESS]
    return frames[-1].owner is Owner.HARNESS and bool(callers) and callers[-1] is Owner.ENGINE


def _place(frame: Frame) -> str:
    where = "the block of the trace" if frame.file.startswith("<") else frame.file
    return f"{where}, line {frame.line}"

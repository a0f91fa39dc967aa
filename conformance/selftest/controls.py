"""Negative controls: judge with one gate broken on purpose, in this process only.

A self-test that passes with a blind gate proves nothing. Each control names a gate and disables its
part of the judge; judging the same stored observations again must then fail the self-test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from conformance.errors import ConformanceError
from conformance.judge import cell, conclude
from conformance.judge.evidence import Evidence
from conformance.judge.measures import floor, gain, reach, relations, structure, tokens
from conformance.judging_runs import one_case
from conformance.records import Limits, Relation, Thresholds, Verdict


def _as_they_are(thresholds: Thresholds) -> Thresholds:
    return thresholds


def _untouched() -> AbstractContextManager[Any]:
    return mock.patch.dict({})


@dataclass(frozen=True)
class Control:
    """A gate, and how it is broken: by a threshold, or by a patch of its code."""

    gate: str
    broken: Callable[[], AbstractContextManager[Any]] = _untouched
    thresholds: Callable[[Thresholds], Thresholds] = _as_they_are


def _settled_as_exact(*blind: Verdict) -> Callable[[], AbstractContextManager[Any]]:
    """Patch the judge so that what would get one of these verdicts passes."""
    settle = Evidence.settle

    def lenient(self: Evidence, site: Any, verdict: Verdict, message: str, **extra: float) -> None:
        passing = verdict in blind
        settle(self, site, Verdict.EXACT if passing else verdict, message, **extra)

    return lambda: mock.patch.object(Evidence, "settle", lenient)


def _ids_alike(*_: Any) -> Relation:
    return Relation(structure.PROMPT_IDS, holds=True)


def _holds(_: Any, __: Any, pair: tuple[str, str], *___: Any) -> Relation:
    return Relation(" ≡ ".join(pair), holds=True)


def _landed(change: gain.ObservedChange, limits: Limits) -> gain.Effect:
    measured = effect(change, limits)
    untouched = measured.landing is gain.Landing.UNTOUCHED
    landing = measured.landing if untouched else gain.Landing.LANDED
    return replace(measured, landing=landing, without=(), reached=())


def _no_leak(change: gain.ObservedChange, limits: Limits) -> gain.Effect:
    return replace(effect(change, limits), leaking=())


effect = gain.effect


def _benign(*arguments: Any) -> tokens.TokenChoice:
    return replace(choice(*arguments), benign=True)


choice = tokens.choice


@contextmanager
def _any_token() -> Iterator[None]:
    """Check an id neither against the reference's logits nor against the engine's own."""
    with (
        mock.patch.object(tokens, "choice", _benign),
        mock.patch.object(tokens, "follow_logits", return_value=None),
    ):
        yield


def _measured(**changed: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Patch the distances so that some of their fields never show an error."""
    measures = floor.measures

    def lenient(*arguments: Any) -> list[floor.Distance]:
        return [replace(distance, **changed) for distance in measures(*arguments)]

    return lambda: mock.patch.object(floor, "measures", lenient)


def widened(*names: str, by: float = math.inf) -> Callable[[Thresholds], Thresholds]:
    """Return a change of the thresholds of both precisions: these limits times `by`."""

    def change(limits: Limits) -> Limits:
        return replace(limits, **{name: by * getattr(limits, name) for name in names})

    return lambda thresholds: replace(
        thresholds, float32=change(thresholds.float32), bf16=change(thresholds.bf16)
    )


@contextmanager
def _one_stage_ignored() -> Iterator[None]:
    with mock.patch.object(one_case, "compare_exact", return_value=()):
        yield


CONTROLS: Mapping[str, Control] = {
    control.gate: control
    for control in (
        Control("missing", _settled_as_exact(Verdict.MISSING)),
        Control("structure", _settled_as_exact(Verdict.STRUCTURE)),
        Control("dtype", _settled_as_exact(Verdict.DTYPE)),
        Control("finite", lambda: mock.patch.object(structure, "finite", return_value="")),
        Control("aliased", lambda: mock.patch.object(relations, "aliased", return_value={})),
        Control("median", thresholds=widened("k_med", "far_med")),
        Control("maximum", thresholds=widened("k_max", "far_max")),
        Control("massive", _measured(massive=0.0, massive_near=0.0, massive_ulps=0.0)),
        Control("shift", _measured(shift=0.0)),
        Control("zero", _measured(zero=True)),
        Control("gain", lambda: mock.patch.object(gain, "effect", _landed)),
        Control("leak", lambda: mock.patch.object(gain, "effect", _no_leak)),
        Control("bitwise rows", lambda: mock.patch.object(reach, "unreached", return_value={})),
        Control("token", _any_token),
        Control(
            "own logits", lambda: mock.patch.object(tokens, "follow_logits", return_value=None)
        ),
        Control("drawn", lambda: mock.patch.object(cell, "likelihood", return_value=None)),
        Control("prompt ids", lambda: mock.patch.object(structure, "prompt_ids", _ids_alike)),
        Control("equal within", lambda: mock.patch.object(relations, "equal_within", _holds)),
        Control("one stage", _one_stage_ignored),
    )
}


#: Gates that no injection can test, because other gates always report first.
#: tests/selftest/test_controls.py breaks them on cells made for that purpose (docs/selftest.md).
OUT_OF_REACH: Mapping[str, Control] = {
    control.gate: control
    for control in (
        Control("flips", lambda: mock.patch.object(tokens, "flips", return_value=None)),
        Control("arrival", lambda: mock.patch.object(conclude, "_arrived", return_value=True)),
    )
}


def find(gate: str) -> Control:
    """Return the control of this gate. Raises ConformanceError if there is none."""
    known = {**CONTROLS, **OUT_OF_REACH}
    if gate not in known:
        remedy = f"one of: {', '.join(known)}"
        raise ConformanceError(f"there is no gate {gate!r} to break", remedy=remedy)
    return known[gate]
